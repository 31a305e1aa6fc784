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
//    down to its use, which saves registers and costs the overlap. One step at a time is enough
//    where registers leave room for more simdgroups instead: with ONE_SUM an output has one
//    accumulator, not four.
#include "matmul.h"

constant uint ROWS [[function_constant(2)]];      // rows of x: 1 to 4
constant uint OUTPUTS [[function_constant(3)]];   // weight rows a lane walks: 1, 2 or 4
constant bool NORMED [[function_constant(4)]];
constant uint STEPS [[function_constant(7)]];     // 0: loads where the compiler puts them
constant uint STEPS_AHEAD = is_function_constant_defined(STEPS) ? STEPS : 0u;
constant bool ONE_SUM = STEPS_AHEAD == 1;
constant bool SCALED [[function_constant(8)]];    // x is multiplied by the norm's weight already
constant bool IS_SCALED = is_function_constant_defined(SCALED) ? SCALED : false;
constant constexpr ushort MAX_ROWS = 4, MAX_OUTPUTS = 4, MAX_STEPS = 2;
constant constexpr ushort TURN = 8;               // sums of squares whose loads overlap

// Loops run to the maximum with a test against the function constant: unrolled by the front
// end, pruned when the pipeline is made, so that accumulators live in registers.
#define EACH_ROW(m) UNROLL for (ushort m = 0; m < MAX_ROWS; m++) if (m < ROWS)
#define EACH_OUTPUT(j) UNROLL for (ushort j = 0; j < MAX_OUTPUTS; j++) if (j < OUTPUTS)
#define EACH_STEP(s) UNROLL for (ushort s = 0; s < MAX_STEPS; s++) if (s < STEPS_AHEAD)
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

inline float across(float4 v) { return (v.x + v.y) + (v.z + v.w); }

inline void add_products(thread float4 *sums, Weights w, thread const Weights *xs) {
    EACH_ROW(m) {
        thread const float4 *v = xs[m].v;
        float4 sum = PLAIN && !ONE_SUM ? sums[m] : float4(0.0f);
        for (ushort i = 0; i < 4; i++) sum = fma(w.v[i], v[i], sum);
        float4 of_x = (v[0] + v[1]) + (v[2] + v[3]);
        if (ONE_SUM) {
            float one = sums[m].x;
            one = PLAIN ? one + across(sum) : fma(across(sum), w.scale, one);
            if (SHIFTED) one = fma(across(of_x), w.shift, one);
            sums[m].x = one;
        } else {
            if (!PLAIN) sum = fma(sum, float4(w.scale), sums[m]);
            if (SHIFTED) sum = fma(of_x, float4(w.shift), sum);
            sums[m] = sum;
        }
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
    if (STEPS_AHEAD == 0) for (uint unit = lane_k; unit * 16 < a.inputs; unit += a.lanes) {
        Weights ws[MAX_OUTPUTS];
        if (IS_AHEAD) EACH_OUTPUT(j) ws[j] = load_weights(rows[j], unit, a.inputs);
        load_rows(xs, x, norm_weight, first_row, unit, a);
        EACH_OUTPUT(j) {
            add_products(sums[j], IS_AHEAD ? ws[j] : load_weights(rows[j], unit, a.inputs), xs);
        }
    } else for (uint next = lane_k; next * 16 < a.inputs; next += STEPS_AHEAD * a.lanes) {
        Packed fetched[MAX_OUTPUTS][MAX_STEPS];
        EACH_OUTPUT(j) EACH_STEP(s) fetched[j][s] = fetch(rows[j], next + s * a.lanes, a.inputs);
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
