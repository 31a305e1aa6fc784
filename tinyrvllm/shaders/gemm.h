// The tiles of gemm and gemm_tensor: 32 rows of x and 64 of W, 32 columns at a time, are staged in
// threadgroup memory by 128 threads; the 32 x 64 products leave through threadgroup memory too, so
// that ragged edges and the epilogue are ordinary code.
//
// 1. 64 weight rows x 32 = 128 units of 16: one per thread, the only work that repeats for every 32
//    rows of x.
// 2. Rows and K past the end are zeros in the tiles: any shape, and no lane is out of step.
// 3. GATED: tile rows 0..31 are the gate's, 32..63 the up matrix's, for the same 32 outputs.
#pragma once
#include "matmul.h"

constant constexpr uint TILE_ROWS = 32, TILE_OUTPUTS = 64, STEP = 32, THREADS = 128;

// Outputs of a threadgroup.
inline uint tile_width() { return GATED ? TILE_OUTPUTS / 2 : TILE_OUTPUTS; }

// Rows first_row.. and columns k.. of x into a tile of floats, X_STRIDE from row to row.
template <uint X_STRIDE>
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

// Products [TILE_ROWS, OUT_STRIDE] of a threadgroup -> y, through the epilogue.
template <uint OUT_STRIDE>
inline void finish_tile(threadgroup const float *out, uint first_row, uint first,
                        uint thread_index, device const float *bias,
                        device const float *residual, device float *y, constant MatmulArgs &a) {
    uint width = tile_width();
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
    uint thread_index [[thread_index_in_threadgroup]]
