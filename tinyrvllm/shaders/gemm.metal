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
// Design points
// 1. Simdgroup s owns rows 16 (s / 2).. and outputs 32 (s % 2)..: 2 x 4 accumulators of 8x8, that
//    is 16 registers a lane, and 6 operand tiles for 8 products.
//
//            outputs 0..31   32..63
//    rows 0..15    s0          s1         K goes by in steps of 32, two barriers each:
//    rows 16..31   s2          s3         stage | barrier | multiply | barrier
//
// 2. 64 weight rows x 32 = 128 units of 16: one per thread, the only work that repeats for
//    every 32 rows of x.
// 3. Tile rows are 36 floats and 40 halves long: 8 rows of an 8x8 tile then start in different
//    banks (Metal.jl measured +22 % from such padding).
// 4. Weights are half in the tile (3 more bits than Q8_0 needs), but float for F32 and BF16, which
//    may exceed half's range. Activations and sums are always float.
// 5. GATED: tile rows 0..31 are the gate's, 32..63 the up matrix's, for the same 32 outputs.
// 6. Output staging reuses the tiles' memory: 13.8 KB in all for float tiles, 9.7 KB for half.
// 7. Rows and K past the end are zeros in the tiles: any shape, and no lane is out of step.
#include <metal_simdgroup_matrix>

#include "matmul.h"

constant constexpr uint TILE_ROWS = 32, TILE_OUTPUTS = 64, STEP = 32, THREADS = 128;
constant constexpr uint X_STRIDE = STEP + 4, OUT_STRIDE = TILE_OUTPUTS + 4;

// Rows first_row.. and columns k.. of x into a tile of floats.
inline void stage_x(threadgroup float *tile, device const float *x, uint first_row, uint k,
                    uint thread_index, constant MatmulArgs &a) {
    for (uint e = thread_index; e < TILE_ROWS * STEP / 4; e += THREADS) {
        uint r = e / (STEP / 4), c = e % (STEP / 4) * 4, row = first_row + r;
        float4 value = float4(0.0f);
        if (row < a.rows && k + c < a.inputs) {
            device const float *from = x + ulong(row) * a.x_stride + k + c;
            if (k + c + 4 <= a.inputs) {
                value = float4(*(device const packed_float4 *)from);
            } else {
                for (ushort i = 0; k + c + i < a.inputs; i++) value[i] = from[i];
            }
        }
        *(threadgroup float4 *)(tile + r * X_STRIDE + c) = value;
    }
}

// One unit of weights per thread into a tile of T.
template <typename T, typename T4, uint W_STRIDE>
inline void stage_w(threadgroup T *tile, device const uchar *weight, device const uchar *up,
                    uint first, uint k, uint thread_index, constant MatmulArgs &a) {
    uint r = thread_index / 2, unit = k / 16 + thread_index % 2;
    bool of_up = GATED && r >= TILE_OUTPUTS / 2;
    uint n = first + (GATED ? r % (TILE_OUTPUTS / 2) : r);
    threadgroup T4 *to = (threadgroup T4 *)(tile + r * W_STRIDE + thread_index % 2 * 16);
    if (n < a.outputs && unit * 16 < a.inputs) {
        Weights w = load_weights(weight_row(of_up ? up : weight, n, a), unit, a.inputs);
        for (ushort i = 0; i < 4; i++) to[i] = T4(dequantised(w, i));
    } else {
        for (ushort i = 0; i < 4; i++) to[i] = T4(0.0f);
    }
}

template <typename T, typename T4, uint W_STRIDE>
inline void multiply(threadgroup float *shared, device const float *x, device const uchar *weight,
                     device const uchar *up, device const float *bias,
                     device const float *residual, device float *y, constant MatmulArgs &a,
                     uint2 group, uint thread_index, uint simdgroup) {
    threadgroup float *x_tile = shared;
    threadgroup T *w_tile = (threadgroup T *)(shared + TILE_ROWS * X_STRIDE);
    uint width = GATED ? TILE_OUTPUTS / 2 : TILE_OUTPUTS;    // outputs of this threadgroup
    uint first_row = group.y * TILE_ROWS, first = group.x * width;
    uint my_row = simdgroup / 2 * 16, my_output = simdgroup % 2 * 32;

    simdgroup_float8x8 sums[2][4];
    UNROLL for (ushort i = 0; i < 2; i++) {
        UNROLL for (ushort j = 0; j < 4; j++) sums[i][j] = simdgroup_float8x8(0.0f);
    }
    for (uint k = 0; k < a.inputs; k += STEP) {
        stage_x(x_tile, x, first_row, k, thread_index, a);
        stage_w<T, T4, W_STRIDE>(w_tile, weight, up, first, k, thread_index, a);
        threadgroup_barrier(mem_flags::mem_threadgroup);     // the tiles are complete
        UNROLL for (ushort kk = 0; kk < STEP; kk += 8) {
            simdgroup_float8x8 xs[2];
            simdgroup_matrix<T, 8, 8> ws[4];
            UNROLL for (ushort i = 0; i < 2; i++) {
                simdgroup_load(xs[i], x_tile + (my_row + i * 8) * X_STRIDE + kk, X_STRIDE);
            }
            UNROLL for (ushort j = 0; j < 4; j++) {
                simdgroup_load(ws[j], w_tile + (my_output + j * 8) * W_STRIDE + kk, W_STRIDE,
                               ulong2(0, 0), true);
            }
            UNROLL for (ushort i = 0; i < 2; i++) {
                UNROLL for (ushort j = 0; j < 4; j++) {
                    simdgroup_multiply_accumulate(sums[i][j], xs[i], ws[j], sums[i][j]);
                }
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);     // the tiles may be overwritten
    }
    threadgroup float *out = shared;                         // [TILE_ROWS, OUT_STRIDE]
    UNROLL for (ushort i = 0; i < 2; i++) {
        UNROLL for (ushort j = 0; j < 4; j++) {
            simdgroup_store(sums[i][j], out + (my_row + i * 8) * OUT_STRIDE + my_output + j * 8,
                            OUT_STRIDE);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = thread_index; e < TILE_ROWS * width; e += THREADS) {
        uint r = e / width, c = e % width, row = first_row + r, n = first + c;
        if (row >= a.rows || n >= a.outputs) continue;
        float value = out[r * OUT_STRIDE + c];
        if (GATED) {
            y[ulong(row) * a.y_stride + n] =
                activate(a.activation, value) * out[r * OUT_STRIDE + width + c];
        } else {
            finish(value, row, n, bias, residual, y, a);
        }
    }
}

#define GEMM_ARGUMENTS                                                                        \
    device const float *x [[buffer(0)]], device const uchar *weight [[buffer(1)]],            \
    device const uchar *up [[buffer(2)]], device const float *bias [[buffer(3)]],             \
    device const float *residual [[buffer(4)]], device float *y [[buffer(5)]],                \
    constant MatmulArgs &a [[buffer(6)]], uint2 group [[threadgroup_position_in_grid]],       \
    uint thread_index [[thread_index_in_threadgroup]],                                        \
    uint simdgroup [[simdgroup_index_in_threadgroup]]

[[max_total_threads_per_threadgroup(128)]]
kernel void gemm_half(GEMM_ARGUMENTS) {
    threadgroup float shared[TILE_ROWS * X_STRIDE + TILE_OUTPUTS * 40 / 2];
    multiply<half, half4, 40>(shared, x, weight, up, bias, residual, y, a, group, thread_index,
                              simdgroup);
}

[[max_total_threads_per_threadgroup(128)]]
kernel void gemm_float(GEMM_ARGUMENTS) {
    threadgroup float shared[TILE_ROWS * X_STRIDE + TILE_OUTPUTS * 36];
    multiply<float, float4, 36>(shared, x, weight, up, bias, residual, y, a, group, thread_index,
                                simdgroup);
}
