// Exercise 08, tile: one simdgroup multiplies 8x8 tiles, straight from device memory.
//
//     y[r, n] = sum over k of x[r, k] * w[n, k]          rows, outputs and inputs: multiples of 8
//
// Fill in the places marked with a number and keep the names of the variables.
// Check:  python -m lessons.check 08 tile
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

struct TileArgs {
    uint rows, outputs, inputs;
};

[[max_total_threads_per_threadgroup(32)]]
kernel void tile(device const float *x [[buffer(0)]],   // [rows, inputs]
                 device const float *w [[buffer(1)]],   // [outputs, inputs]
                 device float *y [[buffer(2)]],         // [rows, outputs]
                 constant TileArgs &a [[buffer(3)]],
                 uint2 group [[threadgroup_position_in_grid]]) {   // x: outputs / 8, y: rows / 8
    simdgroup_float8x8 sums = simdgroup_float8x8(0.0f);
    for (uint k = 0; k < a.inputs; k += 8) {
        // 1. Where the tile of x begins that holds this threadgroup's rows and columns k to k + 7,
        //    counted in floats from the start of x; and the same for w.
        uint x_at = 0;
        uint w_at = 0;

        // 2. Load both. The tile of w is needed transposed: [inputs, outputs].
        //    simdgroup_load(matrix, pointer, floats from row to row, ulong2(0, 0), transposed)
        simdgroup_float8x8 xs = simdgroup_float8x8(0.0f), ws = simdgroup_float8x8(0.0f);

        // 3. sums = xs * ws + sums
    }

    // 4. Where this threadgroup's tile of y begins; store it.
    uint y_at = 0;
    simdgroup_store(sums, y + y_at, a.outputs);
}
