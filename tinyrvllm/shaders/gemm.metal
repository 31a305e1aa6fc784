// gemm: y = x W^T for many rows (prefill). Arithmetic sets the pace, so every weight that was
// dequantised is used for 32 rows and every activation for 64 outputs.
//
// Version ladder (what a threadgroup of 128 does per 32 x 64 x 32 products)
//   1  simdgroup matrices straight from device memory: each 8x8 tile of W is loaded by every
//      simdgroup that needs it, and only F16 or F32 weights can be
//   2  tiles staged in threadgroup memory, 2-byte loads, rows of 32: bank conflicts on every load
//   3  this file: a thread dequantises one whole unit of 16 weights; padded rows; the output goes
//      through threadgroup memory, so ragged edges and the epilogue are ordinary code
//   A 64x64 tile was tried by others: 16 accumulators spilled until every loop over them was
//   unrolled, and then it was no faster.
//
// Design points (gemm.h has those of the tiles)
// 1. Simdgroup s owns all 32 rows of outputs 16 s..: 4 x 2 accumulators of 8x8, that is 16
//    registers a lane, and 6 operand tiles for 8 products. As 2 x 4 it is 6 tiles too, but each
//    tile of W would be read, and transposed, by two simdgroups (soft device: 4 % of the time).
//
//            outputs 0..15  16..31  32..47  48..63    K goes by in steps of 32, two barriers each:
//    rows 0..31    s0      s1      s2      s3         stage | barrier | multiply | barrier
//
// 2. Tile rows are 36 floats and 40 halves long: 8 rows of an 8x8 tile then start in different
//    banks (Metal.jl measured +22 % from such padding).
// 3. Weights are half in the tile (3 more bits than Q8_0 needs), but float for F32 and BF16, which
//    may exceed half's range. Activations and sums are always float.
// 4. Output staging reuses the tiles' memory: 13.5 KB in all for float tiles, 9.5 KB for half.
#include <metal_simdgroup_matrix>

#include "gemm.h"

constant constexpr uint X_STRIDE = STEP + 4, OUT_STRIDE = TILE_OUTPUTS + 4;

template <typename T, typename T4, uint W_STRIDE>
inline void multiply(threadgroup float *shared, device const float *x, device const uchar *weight,
                     device const uchar *up, device const float *bias,
                     device const float *residual, device float *y, constant MatmulArgs &a,
                     uint2 group, uint thread_index, uint simdgroup) {
    threadgroup float *x_tile = shared;
    threadgroup T *w_tile = (threadgroup T *)(shared + TILE_ROWS * X_STRIDE);
    uint first_row = group.y * TILE_ROWS, first = group.x * tile_width();
    uint my_output = simdgroup * 16;

    simdgroup_float8x8 sums[4][2];                           // [rows / 8, outputs / 8]
    UNROLL for (ushort i = 0; i < 4; i++) {
        UNROLL for (ushort j = 0; j < 2; j++) sums[i][j] = simdgroup_float8x8(0.0f);
    }
    for (uint k = 0; k < a.inputs; k += STEP) {
        stage_x<X_STRIDE>(x_tile, x, first_row, k, thread_index, a);
        stage_w<T, T4, W_STRIDE>(w_tile, weight, up, first, k, thread_index, a);
        threadgroup_barrier(mem_flags::mem_threadgroup);     // the tiles are complete
        UNROLL for (ushort kk = 0; kk < STEP; kk += 8) {
            simdgroup_float8x8 xs[4];
            simdgroup_matrix<T, 8, 8> ws[2];
            UNROLL for (ushort i = 0; i < 4; i++) {
                simdgroup_load(xs[i], x_tile + i * 8 * X_STRIDE + kk, X_STRIDE);
            }
            UNROLL for (ushort j = 0; j < 2; j++) {
                simdgroup_load(ws[j], w_tile + (my_output + j * 8) * W_STRIDE + kk, W_STRIDE,
                               ulong2(0, 0), true);
            }
            UNROLL for (ushort i = 0; i < 4; i++) {
                UNROLL for (ushort j = 0; j < 2; j++) {
                    simdgroup_multiply_accumulate(sums[i][j], xs[i], ws[j], sums[i][j]);
                }
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);     // the tiles may be overwritten
    }
    threadgroup float *out = shared;                         // [TILE_ROWS, OUT_STRIDE]
    UNROLL for (ushort i = 0; i < 4; i++) {
        UNROLL for (ushort j = 0; j < 2; j++) {
            simdgroup_store(sums[i][j], out + i * 8 * OUT_STRIDE + my_output + j * 8, OUT_STRIDE);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    finish_tile<OUT_STRIDE>(out, first_row, first, thread_index, bias, residual, y, a);
}

[[max_total_threads_per_threadgroup(128)]]
kernel void gemm_half(GEMM_ARGUMENTS, uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    alignas(16) threadgroup float shared[TILE_ROWS * X_STRIDE + TILE_OUTPUTS * 40 / 2];
    multiply<half, half4, 40>(shared, x, weight, up, bias, residual, y, a, group, thread_index,
                              simdgroup);
}

[[max_total_threads_per_threadgroup(128)]]
kernel void gemm_float(GEMM_ARGUMENTS, uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    alignas(16) threadgroup float shared[TILE_ROWS * X_STRIDE + TILE_OUTPUTS * 36];
    multiply<float, float4, 36>(shared, x, weight, up, bias, residual, y, a, group, thread_index,
                                simdgroup);
}
