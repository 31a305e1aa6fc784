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
// 3. Activations are read straight from device memory, 8x8 floats at a time. Where the last tile
//    of rows or of K is ragged, it passes through a small tile with zeros: pad the rows of a batch
//    to 8 or 16 and that path is never taken.
// 4. The 4 partial results are added in order 0, 1, 2, 3: fixed bits.
// 5. 4 accumulators of 8x8 (8 registers a lane). Threadgroup memory: 10 KB of half tiles (18 KB
//    float for F32 and BF16) + 1 KB + 4 KB.
// 6. GATED: outputs 0..7 of the tile are the gate's and 8..15 the up matrix's.
#include <metal_simdgroup_matrix>

#include "matmul.h"

constant constexpr uint SIMDGROUPS = 4, TILE_ROWS = 16, TILE_OUTPUTS = 16, STEP = 32;

// The 8x8 floats of x at (row, k); zeros past the end.
inline void load_x_tile(thread simdgroup_float8x8 &tile, threadgroup float *scratch,
                        device const float *x, uint row, uint k, uint lane,
                        constant MatmulArgs &a) {
    if (row + 8 <= a.rows && k + 8 <= a.inputs) {
        simdgroup_load(tile, x + ulong(row) * a.x_stride + k, a.x_stride);
        return;
    }
    for (uint e = lane; e < 64; e += 32) {
        uint r = row + e / 8, c = k + e % 8;
        scratch[e] = r < a.rows && c < a.inputs ? x[ulong(r) * a.x_stride + c] : 0.0f;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_load(tile, scratch, 8);
    simdgroup_barrier(mem_flags::mem_threadgroup);           // before the scratch is used again
}

template <typename T, typename T4, uint STRIDE>
inline void multiply(threadgroup T *tiles, threadgroup float *scratch, threadgroup float *partial,
                     device const float *x, device const uchar *weight, device const uchar *up,
                     device const float *bias, device const float *residual, device float *y,
                     constant MatmulArgs &a, uint2 group, uint thread_index, uint lane,
                     uint simdgroup) {
    uint width = GATED ? TILE_OUTPUTS / 2 : TILE_OUTPUTS;    // outputs of this threadgroup
    uint first = group.x * width, first_row = group.y * TILE_ROWS;
    bool of_up = GATED && lane / 2 >= width;
    uint n = first + (GATED ? lane / 2 % width : lane / 2);  // the output this lane unpacks
    device const uchar *row = weight_row(of_up ? up : weight, min(n, a.outputs - 1), a);
    bool two = first_row + 8 < a.rows;                       // is there a second tile of rows?

    simdgroup_float8x8 sums[2][2];                           // [rows / 8, outputs / 8]
    _Pragma("unroll") for (ushort i = 0; i < 2; i++) {
        _Pragma("unroll") for (ushort j = 0; j < 2; j++) sums[i][j] = simdgroup_float8x8(0.0f);
    }
    uint buffer = 0;
    for (uint k = simdgroup * STEP; k < a.inputs; k += SIMDGROUPS * STEP) {
        threadgroup T *tile = tiles + (simdgroup * 2 + buffer) * TILE_OUTPUTS * STRIDE;
        threadgroup T4 *to = (threadgroup T4 *)(tile + lane / 2 * STRIDE + lane % 2 * 16);
        uint unit = k / 16 + lane % 2;
        if (unit * 16 < a.inputs) {
            Weights w = load_weights(row, unit, a.inputs);
            for (ushort i = 0; i < 4; i++) to[i] = T4(dequantised(w, i));
        } else {
            for (ushort i = 0; i < 4; i++) to[i] = T4(0.0f);
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);       // the tile is complete
        for (ushort kk = 0; kk < STEP; kk += 8) {
            simdgroup_float8x8 xs[2];
            simdgroup_matrix<T, 8, 8> ws[2];
            load_x_tile(xs[0], scratch + simdgroup * 64, x, first_row, k + kk, lane, a);
            if (two) load_x_tile(xs[1], scratch + simdgroup * 64, x, first_row + 8, k + kk, lane, a);
            _Pragma("unroll") for (ushort j = 0; j < 2; j++) {
                simdgroup_load(ws[j], tile + j * 8 * STRIDE + kk, STRIDE, ulong2(0, 0), true);
                simdgroup_multiply_accumulate(sums[0][j], xs[0], ws[j], sums[0][j]);
                if (two) simdgroup_multiply_accumulate(sums[1][j], xs[1], ws[j], sums[1][j]);
            }
        }
        buffer ^= 1;
    }
    threadgroup float *mine = partial + simdgroup * TILE_ROWS * TILE_OUTPUTS;
    _Pragma("unroll") for (ushort i = 0; i < 2; i++) {
        _Pragma("unroll") for (ushort j = 0; j < 2; j++) {
            simdgroup_store(sums[i][j], mine + i * 8 * TILE_OUTPUTS + j * 8, TILE_OUTPUTS);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = thread_index; e < TILE_ROWS * width; e += SIMDGROUPS * 32) {
        uint r = e / width, c = e % width, out_row = first_row + r, out = first + c;
        if (out_row >= a.rows || out >= a.outputs) continue;
        float2 value = float2(0.0f);                         // the second is up's, if GATED
        for (uint s = 0; s < SIMDGROUPS; s++) {
            threadgroup float *p = partial + (s * TILE_ROWS + r) * TILE_OUTPUTS + c;
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
    threadgroup half tiles[SIMDGROUPS * 2 * TILE_OUTPUTS * 40];
    threadgroup float scratch[SIMDGROUPS * 64], partial[SIMDGROUPS * TILE_ROWS * TILE_OUTPUTS];
    multiply<half, half4, 40>(tiles, scratch, partial, x, weight, up, bias, residual, y, a, group,
                              thread_index, lane, simdgroup);
}

[[max_total_threads_per_threadgroup(128)]]
kernel void ksplit_float(KSPLIT_ARGUMENTS) {
    threadgroup float tiles[SIMDGROUPS * 2 * TILE_OUTPUTS * 36];
    threadgroup float scratch[SIMDGROUPS * 64], partial[SIMDGROUPS * TILE_ROWS * TILE_OUTPUTS];
    multiply<float, float4, 36>(tiles, scratch, partial, x, weight, up, bias, residual, y, a, group,
                                thread_index, lane, simdgroup);
}
