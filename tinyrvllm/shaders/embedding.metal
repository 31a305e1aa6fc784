// embed: rows of a weight matrix of any type, dequantised to float.
//
// Version ladder
//   1  one thread a number: finds and unpacks its block for one weight
//   2  this file: one thread a unit of 16 weights, and the sums of squares that the first
//      layer's fused norm wants while the values are at hand
//
// 1. A row number of -1 is padding: zeros are written, so that nothing later meets garbage.
// 2. With F32 weights this is a gather of rows: the runner picks the rows to sample with it.
// 3. Partial sums of squares: one per simdgroup of 32 units, in column order.
#include "quant.h"

struct EmbedArgs {   // mirrored by kernels/embedding.py
    uint rows, columns, row_bytes;
    float scale;     // Gemma multiplies by sqrt(columns)
    uint writes_squares;
};

[[max_total_threads_per_threadgroup(64)]]
kernel void embed(device const int *ids [[buffer(0)]],             // [rows]
                  device const uchar *weight [[buffer(1)]],        // [vocabulary, columns]
                  device float *y [[buffer(2)]],                   // [rows, columns]
                  device float *squares_out [[buffer(3)]],         // [rows, columns / 512]
                  constant EmbedArgs &a [[buffer(4)]],
                  uint2 group [[threadgroup_position_in_grid]],
                  uint thread_index [[thread_index_in_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]]) {
    uint unit = group.x * 64 + thread_index, row = group.y, first = unit * 16;
    int id = ids[row];
    float squares = 0.0f;
    if (first < a.columns) {
        device float *out = y + ulong(row) * a.columns + first;
        Weights w;
        if (id >= 0) w = load_weights(weight + ulong(id) * a.row_bytes, unit, a.columns);
        for (ushort i = 0; i < 16 && first + i < a.columns; i++) {
            float value = id < 0 ? 0.0f : dequantised(w, i / 4)[i % 4] * a.scale;
            out[i] = value;
            squares = fma(value * SHRINK, value * SHRINK, squares);
        }
    }
    if (!a.writes_squares) return;
    squares = simd_sum(squares);
    uint parts = (a.columns + 511) / 512;
    if (lane == 0 && unit / 32 < parts) squares_out[row * parts + unit / 32] = squares;
}
