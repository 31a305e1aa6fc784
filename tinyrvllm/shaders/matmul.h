// What matvec, ksplit and gemm have in common: y = x W^T with a fused epilogue.
//
//   x  [rows, inputs]   float, rows x_stride apart
//   W  [outputs, inputs] any weight type, rows row_bytes apart
//   y  [rows, outputs]  float, rows y_stride apart
//
// Epilogue, in this order: bias, then residual; or for the gated form, which multiplies by two
// matrices of one type, y = activation(x gate^T) * (x up^T).
#pragma once
#include "quant.h"

// Loads go ahead of what uses them: more registers, fewer waits. For GPUs with many of both.
constant bool AHEAD [[function_constant(6)]];
constant bool IS_AHEAD = is_function_constant_defined(AHEAD) ? AHEAD : false;
constant bool GATED [[function_constant(1)]];   // `weight` is the gate, `up` is the other matrix

struct MatmulArgs {   // mirrored by kernels/matmul.py
    uint rows, outputs, inputs;
    uint row_bytes;                              // of a weight row
    uint x_stride, y_stride, residual_stride;    // in floats
    uint activation;                             // see activate(); gated form only
    uint has_bias, has_residual;
    uint lanes;                                  // matvec: lanes that share one output
    uint norm_parts, norm_stride;                // matvec: partial sums of squares in a row of x
    float norm_epsilon;
    uint writes_squares;                         // matvec: leave sums of squares of y for a norm
    uint next_stride;                            // ... and y times its weight, in rows so far apart
    uint part_ends[2];                           // matvec: see weight_row_of
    uint part_offsets[3];                        // in bytes
};

// One widening 32 x 32 -> 64 bit multiplication per row, none per block.
inline device const uchar *weight_row(device const uchar *weight, uint n, constant MatmulArgs &a) {
    return weight + ulong(n) * a.row_bytes;
}

// The same where up to three matrices of one type and width count as one, output after output: the
// second and the third begin with outputs part_ends[0] and [1].
inline device const uchar *weight_row_of(device const uchar *weight, uint n,
                                         constant MatmulArgs &a) {
    uint part = n < a.part_ends[0] ? 0 : n < a.part_ends[1] ? 1 : 2;
    uint first = part == 0 ? 0 : a.part_ends[part - 1];
    return weight_row(weight + a.part_offsets[part], n - first, a);
}

// Finishes y[row, n] and returns what it stored.
inline float finish(float value, uint row, uint n, device const float *bias,
                    device const float *residual, device float *y, constant MatmulArgs &a) {
    if (a.has_bias) value += bias[n];
    if (a.has_residual) value += residual[ulong(row) * a.residual_stride + n];
    y[ulong(row) * a.y_stride + n] = value;
    return value;
}
