// matvec: y = x W^T for 1 to 4 rows of x. Decoding is this kernel: every weight is read once a
// token, so the memory bus sets the pace and arithmetic must merely keep up.
//
// Version ladder (bytes are the same for all; times of 2560 x 960 F16, one row, one thread of the
// soft device)
//   1  one thread an output: neighbouring lanes read rows apart, a cache line for 2 bytes each
//   2  one simdgroup an output, lanes stride K, one simd_sum each: K = 576 leaves lanes idle,
//      and the reduction costs as much as the products                             1.9 ms
//   3  this file: a few lanes share an output, a simdgroup owns 4 to 32 outputs, activations
//      are loaded once for all outputs of a lane, weights once for all rows        0.35-0.5 ms
//
// Design points
// 1. 8 (or 4) lanes stride along K, 16 weights each, so one step covers 128 (or 64) weights.
//    SmolLM2's K = 576 and 960 are whole steps of 64 and 1536 and 2560 of 128: no lane idles.
//    kernels/matvec.py picks `lanes`; 64 F16 weights are one 128-byte cache line.
// 2. Lane l works for output group l / lanes; in step j of OUTPUTS the 32 / lanes groups take
//    consecutive outputs, so that a group of stores is contiguous.
//
//        lanes = 8        k ->  0..15  16..31  32..47 ... 112..127 | 128..
//        output n + 0           lane0  lane1   lane2  ... lane7    | lane0
//        output n + 1           lane8  lane9   lane10 ... lane15   | lane8
//        output n + 2           lane16 ...                lane23   | lane16
//        output n + 3           lane24 ...                lane31   | lane24
//
// 3. Reduction once, at the end: log2(lanes) shuffles of a float4 that carries 4 outputs.
// 4. Registers a lane: OUTPUTS * ROWS accumulators of float4, 16 floats of x for each row, 16
//    weights. 4 outputs at 3 rows and 2 at 4 rows are 112 of the 128 we allow.
// 5. Outputs and rows past the end compute the last one again and store nothing: cheaper than a
//    branch in the loop, and no lane leaves before the shuffles.
// 6. NORMED multiplies by a norm's weight on the way in and by 1 / rms on the way out. The sum
//    of squares comes as partial sums that the kernel before left behind (writes_squares); each
//    simdgroup adds them in the same order. Repeated work: one multiplication per element of x
//    and a few dozen additions per simdgroup; saved: a dispatch and a phase. Thousands of
//    simdgroups would repeat too much: for them the kernel before multiplies, too (next_stride),
//    and has one sum for each of its threadgroups; SCALED is what is left to do.
// 7. A row's sums never depend on the other rows, nor on OUTPUTS: batch-invariant.
// 8. A GPU of many cores has few simdgroups on each and hides the wait for memory only if every
//    lane has several loads under way: the weights of STEPS whole steps are loaded before any is
//    used. simdgroup_barrier(mem_none) orders no memory: it keeps the compiler from moving a load
//    down to its use, which saves registers and costs the overlap.
// 9. Q8_0 there: 16 weights a lane are 17 bytes from lane to lane, so that each load of 4 bytes
//    touches five cache lines, and a load of x sixteen: the first-level cache sets the pace. With 8
//    weights a lane, a part, a step of 256 weights is 272 bytes; 16 bytes from a multiple of 8 on
//    hold a lane's:
//
//        block 0   d d q0 q1 ... q7 | q8 ... q15 | q16 ... q23 | q24 ... q31     lanes 0 to 3
//        loaded    ^ 2 bytes before lane 0's weights: they begin at bytes 2, 4, 6 or 8 of their 16,
//                    in blocks 0, 1, 2 and 3 of four, the same in every step
#include "matmul.h"

constant uint ROWS [[function_constant(2)]];      // rows of x: 1 to 4
constant uint OUTPUTS [[function_constant(3)]];   // weight rows a lane walks: 1, 2 or 4
constant bool NORMED [[function_constant(4)]];
constant uint STEPS [[function_constant(7)]];     // 0: loads where the compiler puts them
constant uint STEPS_AHEAD = is_function_constant_defined(STEPS) ? STEPS : 0u;
constant uint PARTS [[function_constant(8)]];     // Q8_0: parts of 8 instead, as many under way
constant uint PARTS_AHEAD = is_function_constant_defined(PARTS) ? PARTS : 0u;
constant bool SCALED [[function_constant(9)]];    // x is multiplied by the norm's weight already
constant bool IS_SCALED = is_function_constant_defined(SCALED) ? SCALED : false;
constant constexpr ushort MAX_ROWS = 4, MAX_OUTPUTS = 4, MAX_STEPS = 2, MAX_PARTS = 8;
constant constexpr ushort TURN = 8;               // sums of squares whose loads overlap

// Loops run to the maximum with a test against the function constant: unrolled by the front
// end, pruned when the pipeline is made, so that accumulators live in registers.
#define EACH_ROW(m) UNROLL for (ushort m = 0; m < MAX_ROWS; m++) if (m < ROWS)
#define EACH_OUTPUT(j) UNROLL for (ushort j = 0; j < MAX_OUTPUTS; j++) if (j < OUTPUTS)
#define EACH_STEP(s) UNROLL for (ushort s = 0; s < MAX_STEPS; s++) if (s < STEPS_AHEAD)
#define EACH_PART(i) UNROLL for (ushort i = 0; i < MAX_PARTS; i++) if (i < PARTS_AHEAD)
#define EACH_OF_TURN(t) UNROLL for (ushort t = 0; t < TURN; t++)

// 16 activations of a row, from 16 * unit on; zero past `columns`.
inline Weights load_x(device const float *x, uint unit, uint columns) {
    Weights v;
    if (IS_WIDE || unit * 16 + 16 <= columns) {
        device const packed_float4 *p = (device const packed_float4 *)(x + unit * 16);
        for (ushort i = 0; i < 4; i++) {
            v.v[i] = IS_WIDE ? ((device const float4 *)p)[i] : float4(p[i]);
        }
    } else {
        for (ushort i = 0; i < 16; i++) {
            v.v[i / 4][i % 4] = unit * 16 + i < columns ? x[unit * 16 + i] : 0.0f;
        }
    }
    return v;
}

// Unit `unit` of the rows from first_row on, times the norm's weight.
inline void load_rows(thread Weights *xs, device const float *x, device const float *norm_weight,
                      uint first_row, uint unit, constant MatmulArgs &a) {
    EACH_ROW(m) {
        uint row = min(first_row + m, a.rows - 1);
        xs[m] = load_x(x + ulong(row) * a.x_stride, unit, a.inputs);
    }
    if (NORMED) {
        Weights scale = load_x(norm_weight, unit, a.inputs);
        EACH_ROW(m) for (ushort i = 0; i < 4; i++) xs[m].v[i] *= scale.v[i];
    }
}

inline void add_products(thread float4 *sums, Weights w, thread const Weights *xs) {
    EACH_ROW(m) {
        thread const float4 *v = xs[m].v;
        float4 sum = PLAIN ? sums[m] : float4(0.0f);
        for (ushort i = 0; i < 4; i++) sum = fma(w.v[i], v[i], sum);
        if (!PLAIN) sum = fma(sum, float4(w.scale), sums[m]);
        if (SHIFTED) sum = fma((v[0] + v[1]) + (v[2] + v[3]), float4(w.shift), sum);
        sums[m] = sum;
    }
}

// 1 / rms of each row, from the partial sums of (x * SHRINK)^2: norm_parts of them in a row,
// norm_stride floats from row to row.
inline float4 inverse_rms(device const float *squares, uint first_row, uint lane,
                          constant MatmulArgs &a) {
    float4 sum = float4(0.0f);
    EACH_ROW(m) {
        device const float *of_row = squares + min(first_row + m, a.rows - 1) * a.norm_stride;
        for (uint i = lane; i < a.norm_parts; i += 32) sum[m] += of_row[i];
    }
    return norm_scale(simd_sum(sum) / float(a.inputs), a.norm_epsilon);
}

// The same for a GPU of many cores: all of a row's sums are loaded before one is used.
inline float4 inverse_rms_at_once(device const float *squares, uint first_row, uint lane,
                                  constant MatmulArgs &a) {
    float4 norm = float4(1.0f);
    EACH_ROW(m) {
        device const float *of_row = squares + min(first_row + m, a.rows - 1) * a.norm_stride;
        float4 sum = float4(0.0f);
        if (IS_WIDE && a.norm_parts % 4 == 0) {
            device const float4 *fours = (device const float4 *)of_row;
            for (uint base = lane; base * 4 < a.norm_parts; base += 32 * TURN) {
                float4 part[TURN];
                EACH_OF_TURN(t) {
                    uint at = base + t * 32;
                    part[t] = at * 4 < a.norm_parts ? fours[at] : float4(0.0f);
                }
                EACH_OF_TURN(t) sum += part[t];
            }
        } else {
            for (uint i = lane; i < a.norm_parts; i += 32) sum.x += of_row[i];
        }
        float all = simd_sum((sum.x + sum.y) + (sum.z + sum.w));
        norm[m] = norm_scale(all / float(a.inputs), a.norm_epsilon);
    }
    return norm;
}

// Eight weights as `words` hold them, `shift` bytes into the 16: see point 9.
inline void weights_of_part(thread float4 *weights, thread const uint *words, uint shift) {
    bool far = shift > 4;
    for (ushort k = 0; k < 2; k++) {
        uint low = far ? words[k + 1] : words[k], high = far ? words[k + 2] : words[k + 1];
        ulong both = ulong(high) << 32 | low;
        weights[k] = float4(as_type<char4>(uint(both >> (8 * (far ? shift - 4 : shift)))));
    }
}

// The loop over K for Q8_0, in parts of 8 weights; the sums are in the first components.
inline void add_parts(thread float4 (*sums)[MAX_ROWS], device const uchar *thread *rows,
                      device const float *x, device const float *norm_weight, uint first_row,
                      uint lane, constant MatmulArgs &a) {
    uint block = lane / 4, shift = 2 + block % 4 * 2;
    device const uint2 *from[MAX_OUTPUTS];
    device const half *scale_of[MAX_OUTPUTS];
    EACH_OUTPUT(j) {
        from[j] = (device const uint2 *)(rows[j] + block * 34 + lane % 4 * 8 + 2 - shift);
        scale_of[j] = (device const half *)(rows[j] + block * 34);
    }
    device const float4 *x4 = (device const float4 *)x + lane * 2;
    device const float4 *norm4 = (device const float4 *)norm_weight + lane * 2;
    for (uint step = 0; step * 256 < a.inputs; step += PARTS_AHEAD) {
        uint words[MAX_OUTPUTS][MAX_PARTS][4];
        half scales[MAX_OUTPUTS][MAX_PARTS];
        EACH_OUTPUT(j) EACH_PART(i) {
            uint2 low = from[j][i * 34], high = from[j][i * 34 + 1];   // 272 bytes a step
            words[j][i][0] = low.x;
            words[j][i][1] = low.y;
            words[j][i][2] = high.x;
            words[j][i][3] = high.y;
            scales[j][i] = scale_of[j][i * 136];
        }
        simdgroup_barrier(mem_flags::mem_none);
        EACH_PART(i) {
            float4 v[MAX_ROWS][2];
            EACH_ROW(m) for (ushort k = 0; k < 2; k++) {
                uint row = min(first_row + m, a.rows - 1);
                v[m][k] = x4[row * (a.x_stride / 4) + i * 64 + k];
                if (NORMED) v[m][k] *= norm4[i * 64 + k];
            }
            EACH_OUTPUT(j) {
                float4 w[2];
                weights_of_part(w, words[j][i], shift);
                EACH_ROW(m) {
                    float sum = fma(w[0].y, v[m][0].y, w[0].x * v[m][0].x);
                    sum = fma(w[0].w, v[m][0].w, fma(w[0].z, v[m][0].z, sum));
                    sum = fma(w[1].y, v[m][1].y, fma(w[1].x, v[m][1].x, sum));
                    sum = fma(w[1].w, v[m][1].w, fma(w[1].z, v[m][1].z, sum));
                    sums[j][m].x = fma(sum, float(scales[j][i]), sums[j][m].x);
                }
            }
        }
        EACH_OUTPUT(j) {
            from[j] += PARTS_AHEAD * 34;
            scale_of[j] += PARTS_AHEAD * 136;
        }
        x4 += PARTS_AHEAD * 64;
        norm4 += PARTS_AHEAD * 64;
    }
}

[[max_total_threads_per_threadgroup(64)]]
kernel void matvec(device const float *x [[buffer(0)]], device const uchar *weight [[buffer(1)]],
                   device const uchar *up [[buffer(2)]], device const float *bias [[buffer(3)]],
                   device const float *residual [[buffer(4)]], device float *y [[buffer(5)]],
                   // [inputs]; [outputs] with next_stride
                   device const float *norm_weight [[buffer(6)]],
                   device const float *squares_in [[buffer(7)]],    // [rows, norm_stride]
                   // [rows, outputs * lanes / 32]; with next_stride rows of y * norm_weight and one
                   // sum for each threadgroup
                   device float *squares_out [[buffer(8)]],
                   constant MatmulArgs &a [[buffer(9)]],
                   uint2 group [[threadgroup_position_in_grid]],
                   uint lane [[thread_index_in_simdgroup]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup float other[MAX_ROWS];                      // squares of the second simdgroup
    uint lane_k = lane % a.lanes, at_once = 32 / a.lanes;   // at_once: outputs in a step j
    uint matrices = GATED ? 2 : 1, first = (group.x * 2 + simdgroup) * (OUTPUTS / matrices);
    uint first_row = group.y * MAX_ROWS;                    // of x

    device const uchar *rows[MAX_OUTPUTS];
    uint outputs[MAX_OUTPUTS];
    EACH_OUTPUT(j) {
        outputs[j] = (first + j / matrices) * at_once + lane / a.lanes;
        uint n = min(outputs[j], a.outputs - 1);
        rows[j] = GATED && j % 2 == 1 ? weight_row(up, n, a) : weight_row_of(weight, n, a);
    }

    float4 sums[MAX_OUTPUTS][MAX_ROWS];
    EACH_OUTPUT(j) EACH_ROW(m) sums[j][m] = float4(0.0f);
    Weights xs[MAX_ROWS];
    if (PARTS_AHEAD > 0) {
        add_parts(sums, rows, x, norm_weight, first_row, lane, a);
    } else if (STEPS_AHEAD == 0) for (uint unit = lane_k; unit * 16 < a.inputs; unit += a.lanes) {
        Weights ws[MAX_OUTPUTS];
        if (IS_AHEAD) EACH_OUTPUT(j) ws[j] = load_weights(rows[j], unit, a.inputs);
        load_rows(xs, x, norm_weight, first_row, unit, a);
        EACH_OUTPUT(j) {
            add_products(sums[j], IS_AHEAD ? ws[j] : load_weights(rows[j], unit, a.inputs), xs);
        }
    } else for (uint next = lane_k; next * 16 < a.inputs; next += STEPS_AHEAD * a.lanes) {
        Packed fetched[MAX_OUTPUTS][MAX_STEPS];
        EACH_OUTPUT(j) EACH_STEP(s) fetched[j][s] = fetch(rows[j], next + s * a.lanes);
        simdgroup_barrier(mem_flags::mem_none);
        EACH_STEP(s) {
            load_rows(xs, x, norm_weight, first_row, next + s * a.lanes, a);
            EACH_OUTPUT(j) add_products(sums[j], widened(fetched[j][s]), xs);
        }
    }

    float4 norm = float4(1.0f);
    if (NORMED) norm = inverse_rms(squares_in, first_row, lane, a);
    if (IS_SCALED) norm = inverse_rms_at_once(squares_in, first_row, lane, a);
    EACH_ROW(m) {
        uint row = first_row + m;
        bool live = row < a.rows;
        float4 total = float4(0.0f);                        // one component per output
        EACH_OUTPUT(j) {
            float2 pair = sums[j][m].xy + sums[j][m].zw;
            total[j] = pair.x + pair.y;
        }
        for (ushort step = 1; step < a.lanes; step *= 2) total += simd_shuffle_xor(total, step);
        if (NORMED || IS_SCALED) total *= norm[m];

        float stored = 0.0f;                                // lane_k j finishes output j
        EACH_OUTPUT(j) {
            uint n = outputs[j];
            if (GATED && j % 2 == 0 && lane_k == j / 2 && n < a.outputs && live) {
                y[ulong(row) * a.y_stride + n] =
                    activate(a.activation, total[j]) * total[j + 1];
            }
            if (!GATED && lane_k == j && n < a.outputs && live) {
                stored = finish(total[j], row, n, bias, residual, y, a);
            }
        }
        if (a.writes_squares && a.next_stride == 0) {       // sums over the groups, per lane_k
            float small = stored * SHRINK, square = small * small;
            for (ushort step = a.lanes; step < 32; step *= 2) {
                square += simd_shuffle_xor(square, step);
            }
            uint parts = (a.outputs + at_once - 1) / at_once, part = first + lane_k;
            if (lane < OUTPUTS && part < parts && live) squares_out[row * parts + part] = square;
        }
        if (a.next_stride > 0) {
            float small = stored * SHRINK, square = simd_sum(small * small);
            device float *next = squares_out + ulong(row) * a.next_stride;
            EACH_OUTPUT(j) if (lane_k == j && outputs[j] < a.outputs && live) {
                next[outputs[j]] = stored * norm_weight[outputs[j]];
            }
            if (simdgroup == 1 && lane == 0) other[m] = square;
            threadgroup_barrier(mem_flags::mem_threadgroup);
            if (simdgroup == 0 && lane == 0 && live) next[a.outputs + group.x] = square + other[m];
        }
    }
}
