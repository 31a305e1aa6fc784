// ksplit: y = x W^T for 5 to 16 rows (batched decoding). Too many rows for matvec's registers, too
// few to fill gemm's tile: what costs time here is waiting, not arithmetic.
//
// Version ladder (960 x 320 at 8 rows on an M5, the Rust original's profile)
//   1  gemm's 32x64 tile: 5 threadgroups for the whole GPU, each walks all of K with two barriers
//      a step, and three quarters of the tile is empty: 46 us
//   2  an 8-wide tile whose 4 simdgroups each take a part of K, no barrier in the loop: 10.6 us
//   3  this file: 16 outputs a threadgroup, so that all 32 lanes dequantise and each 8x8 tile of
//      x serves two tiles of W; two buffers a simdgroup, so one simdgroup_barrier a step
//
// Design points
// 1. The 4 simdgroups take K in turns, steps of 32: simdgroup s has steps s, s + 4, s + 8, ...
//    K = 576 is 18 steps: 5, 5, 4, 4.
// 2. In a step lane l dequantises unit l % 2 of output l / 2 (16 outputs x 2 units) into the
//    simdgroup's own tile: only simdgroup_barrier orders that, nobody waits for another simdgroup.
//
//        k0        k0 + 16                     two tiles take turns: while one is multiplied
//    n0   lane 0   lane 1                      the other is filled, so the barrier after filling
//    n1   lane 2   lane 3                      also keeps the fill after next from overtaking
//    ...
//    n15  lane 30  lane 31
//
// 3. Activations are read straight from device memory, 8x8 floats at a time. A step that is ragged
//    in rows or in K passes through scratch memory with zeros instead: pad the rows of a batch to
//    8 or 16 and that path is never taken.
// 4. The 4 partial results are added in order 0, 1, 2, 3: fixed bits.
// 5. 4 accumulators of 8x8 (8 registers a lane). Threadgroup memory: 10 KB of half tiles (18 KB
//    float for F32 and BF16) + 8 KB of scratch, where the partial results go as well.
// 6. GATED: outputs 0..7 of the tile are the gate's and 8..15 the up matrix's.
#include <metal_simdgroup_matrix>

#include "matmul.h"

constant constexpr uint SIMDGROUPS = 4, TILE_ROWS = 16, TILE_OUTPUTS = 16, STEP = 32;

// 16 rows x 32 of x into a simdgroup's scratch; zeros past the end of either.
inline void stage_x(threadgroup float *scratch, device const float *x, uint row, uint k, uint lane,
                    constant MatmulArgs &a) {
    for (uint e = lane; e < TILE_ROWS * STEP; e += 32) {
        uint r = row + e / STEP, c = k + e % STEP;
        scratch[e] = r < a.rows && c < a.inputs ? x[ulong(r) * a.x_stride + c] : 0.0f;
    }
}

// sums += x[16, 32] * tile[16, 32]^T; x in device or in threadgroup memory.
template <typename T, uint STRIDE, typename X>
inline void multiply_step(thread simdgroup_float8x8 (&sums)[2][2], X x, uint x_stride, bool two,
                          threadgroup const T *tile) {
    UNROLL for (ushort k = 0; k < STEP; k += 8) {
        simdgroup_float8x8 xs;
        simdgroup_matrix<T, 8, 8> ws[2];
        simdgroup_load(ws[0], tile + k, STRIDE, ulong2(0, 0), true);
        simdgroup_load(ws[1], tile + 8 * STRIDE + k, STRIDE, ulong2(0, 0), true);
        simdgroup_load(xs, x + k, x_stride);
        simdgroup_multiply_accumulate(sums[0][0], xs, ws[0], sums[0][0]);
        simdgroup_multiply_accumulate(sums[0][1], xs, ws[1], sums[0][1]);
        if (two) {
            simdgroup_load(xs, x + 8 * x_stride + k, x_stride);
            simdgroup_multiply_accumulate(sums[1][0], xs, ws[0], sums[1][0]);
            simdgroup_multiply_accumulate(sums[1][1], xs, ws[1], sums[1][1]);
        }
    }
}

// This lane's unit of W into the simdgroup's tile.
template <typename T4>
inline void fill(threadgroup T4 *to, thread const Weights &w) {
    for (ushort i = 0; i < 4; i++) to[i] = T4(dequantised(w, i));
}

// x[16, 32] as matrices, straight from device memory.
inline void load_x_tiles(thread simdgroup_float8x8 (&xs)[2][4], device const float *x,
                         uint x_stride, bool two) {
    UNROLL for (ushort k = 0; k < 4; k++) {
        simdgroup_load(xs[0][k], x + k * 8, x_stride);
        if (two) simdgroup_load(xs[1][k], x + 8 * x_stride + k * 8, x_stride);
    }
}

// All of a simdgroup's steps, each loaded while the one before is multiplied: for whole steps and
// whole rows of tiles. The products and their order are those of `multiply_step`.
template <typename T, typename T4, uint STRIDE>
inline void steps_ahead(thread simdgroup_float8x8 (&sums)[2][2], threadgroup T *tiles,
                        device const float *x, device const uchar *row, bool two, uint lane,
                        uint simdgroup, constant MatmulArgs &a) {
    uint k = simdgroup * STEP, buffer = 0;
    if (k >= a.inputs) return;
    Weights w = load_weights(row, k / 16 + lane % 2, a.inputs);
    simdgroup_float8x8 xs[2][4];
    load_x_tiles(xs, x + k, a.x_stride, two);
    while (k < a.inputs) {
        threadgroup T *tile = tiles + (simdgroup * 2 + buffer) * TILE_OUTPUTS * STRIDE;
        fill((threadgroup T4 *)(tile + lane / 2 * STRIDE + lane % 2 * 16), w);
        k += SIMDGROUPS * STEP;
        uint next = min(k, a.inputs - STEP);                 // the last one is loaded in vain
        w = load_weights(row, next / 16 + lane % 2, a.inputs);
        simdgroup_float8x8 upcoming[2][4];
        load_x_tiles(upcoming, x + next, a.x_stride, two);
        simdgroup_barrier(mem_flags::mem_threadgroup);       // the tile is complete
        UNROLL for (ushort t = 0; t < 4; t++) {
            simdgroup_matrix<T, 8, 8> ws[2];
            simdgroup_load(ws[0], tile + t * 8, STRIDE, ulong2(0, 0), true);
            simdgroup_load(ws[1], tile + 8 * STRIDE + t * 8, STRIDE, ulong2(0, 0), true);
            simdgroup_multiply_accumulate(sums[0][0], xs[0][t], ws[0], sums[0][0]);
            simdgroup_multiply_accumulate(sums[0][1], xs[0][t], ws[1], sums[0][1]);
            if (two) {
                simdgroup_multiply_accumulate(sums[1][0], xs[1][t], ws[0], sums[1][0]);
                simdgroup_multiply_accumulate(sums[1][1], xs[1][t], ws[1], sums[1][1]);
            }
        }
        UNROLL for (ushort t = 0; t < 4; t++) xs[0][t] = upcoming[0][t];
        UNROLL for (ushort t = 0; t < 4; t++) xs[1][t] = upcoming[1][t];
        buffer ^= 1;
    }
}

template <typename T, typename T4, uint STRIDE>
inline void multiply(threadgroup T *tiles, threadgroup float *scratch, device const float *x,
                     device const uchar *weight, device const uchar *up,
                     device const float *bias, device const float *residual, device float *y,
                     constant MatmulArgs &a, uint2 group, uint thread_index, uint lane,
                     uint simdgroup) {
    uint width = GATED ? TILE_OUTPUTS / 2 : TILE_OUTPUTS;    // outputs of this threadgroup
    uint first = group.x * width, first_row = group.y * TILE_ROWS;
    bool of_up = GATED && lane / 2 >= width;
    uint n = first + (GATED ? lane / 2 % width : lane / 2);  // the output this lane unpacks
    device const uchar *row = weight_row(of_up ? up : weight, min(n, a.outputs - 1), a);
    device const float *x_rows = x + ulong(first_row) * a.x_stride;
    uint rows = min(a.rows - first_row, TILE_ROWS);
    bool two = rows > 8, whole_rows = rows % 8 == 0;         // two: is there a second row tile?
    threadgroup float *my_scratch = scratch + simdgroup * TILE_ROWS * STEP;

    simdgroup_float8x8 sums[2][2];                           // [rows / 8, outputs / 8]
    UNROLL for (ushort i = 0; i < 2; i++) {
        UNROLL for (ushort j = 0; j < 2; j++) sums[i][j] = simdgroup_float8x8(0.0f);
    }
    bool ahead = IS_AHEAD && whole_rows && a.inputs % STEP == 0;
    if (ahead) steps_ahead<T, T4, STRIDE>(sums, tiles, x_rows, row, two, lane, simdgroup, a);
    uint buffer = 0;
    for (uint k = ahead ? a.inputs : simdgroup * STEP; k < a.inputs; k += SIMDGROUPS * STEP) {
        threadgroup T *tile = tiles + (simdgroup * 2 + buffer) * TILE_OUTPUTS * STRIDE;
        threadgroup T4 *to = (threadgroup T4 *)(tile + lane / 2 * STRIDE + lane % 2 * 16);
        uint unit = k / 16 + lane % 2;
        if (unit * 16 < a.inputs) {
            Weights w = load_weights(row, unit, a.inputs);
            for (ushort i = 0; i < 4; i++) to[i] = T4(dequantised(w, i));
        } else {
            for (ushort i = 0; i < 4; i++) to[i] = T4(0.0f);
        }
        bool whole = whole_rows && k + STEP <= a.inputs;
        if (!whole) stage_x(my_scratch, x, first_row, k, lane, a);
        simdgroup_barrier(mem_flags::mem_threadgroup);       // tile and scratch are complete
        if (whole) {
            multiply_step<T, STRIDE>(sums, x_rows + k, a.x_stride, two, tile);
        } else {
            multiply_step<T, STRIDE>(sums, (threadgroup const float *)my_scratch, STEP, two, tile);
            simdgroup_barrier(mem_flags::mem_threadgroup);   // before the scratch is used again
        }
        buffer ^= 1;
    }
    UNROLL for (ushort i = 0; i < 2; i++) {       // [16, 16] into each scratch
        UNROLL for (ushort j = 0; j < 2; j++) {
            simdgroup_store(sums[i][j], my_scratch + i * 8 * TILE_OUTPUTS + j * 8, TILE_OUTPUTS);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = thread_index; e < TILE_ROWS * width; e += SIMDGROUPS * 32) {
        uint r = e / width, c = e % width, out_row = first_row + r, out = first + c;
        if (out_row >= a.rows || out >= a.outputs) continue;
        float2 value = float2(0.0f);                         // the second is up's, if GATED
        for (uint s = 0; s < SIMDGROUPS; s++) {
            threadgroup float *p = scratch + s * TILE_ROWS * STEP + r * TILE_OUTPUTS + c;
            value.x += p[0];
            if (GATED) value.y += p[width];
        }
        if (GATED) y[ulong(out_row) * a.y_stride + out] = activate(a.activation, value.x) * value.y;
        else finish(value.x, out_row, out, bias, residual, y, a);
    }
}

#define KSPLIT_ARGUMENTS                                                                      \
    device const float *x [[buffer(0)]], device const uchar *weight [[buffer(1)]],            \
    device const uchar *up [[buffer(2)]], device const float *bias [[buffer(3)]],             \
    device const float *residual [[buffer(4)]], device float *y [[buffer(5)]],                \
    constant MatmulArgs &a [[buffer(6)]], uint2 group [[threadgroup_position_in_grid]],       \
    uint thread_index [[thread_index_in_threadgroup]],                                        \
    uint lane [[thread_index_in_simdgroup]],                                                  \
    uint simdgroup [[simdgroup_index_in_threadgroup]]

[[max_total_threads_per_threadgroup(128)]]
kernel void ksplit_half(KSPLIT_ARGUMENTS) {
    alignas(16) threadgroup half tiles[SIMDGROUPS * 2 * TILE_OUTPUTS * 40];
    alignas(16) threadgroup float scratch[SIMDGROUPS * TILE_ROWS * STEP];
    multiply<half, half4, 40>(tiles, scratch, x, weight, up, bias, residual, y, a, group,
                              thread_index, lane, simdgroup);
}

[[max_total_threads_per_threadgroup(128)]]
kernel void ksplit_float(KSPLIT_ARGUMENTS) {
    alignas(16) threadgroup float tiles[SIMDGROUPS * 2 * TILE_OUTPUTS * 36];
    alignas(16) threadgroup float scratch[SIMDGROUPS * TILE_ROWS * STEP];
    multiply<float, float4, 36>(tiles, scratch, x, weight, up, bias, residual, y, a, group,
                                thread_index, lane, simdgroup);
}
