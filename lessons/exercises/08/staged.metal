// Exercise 08, staged: four simdgroups share tiles in threadgroup memory.
//
//     y[r, n] = sum over k of x[r, k] * w[n, k]          any number of rows, outputs and inputs
//
// A threadgroup of 128 threads computes 16 x 16 of y; simdgroup s the 8x8 quadrant at row s / 2,
// column s % 2 of it. Fill in the places marked with a number; keep the names of the variables.
// Check:  python -m lessons.check 08 staged
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

struct TileArgs {
    uint rows, outputs, inputs;
};

[[max_total_threads_per_threadgroup(128)]]
kernel void staged(device const float *x [[buffer(0)]],   // [rows, inputs]
                   device const float *w [[buffer(1)]],   // [outputs, inputs]
                   device float *y [[buffer(2)]],         // [rows, outputs]
                   constant TileArgs &a [[buffer(3)]],
                   uint2 group [[threadgroup_position_in_grid]],
                   uint thread_index [[thread_index_in_threadgroup]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup float x_tile[256], w_tile[256], y_tile[256];   // [16, 16] each
    uint first_row = group.y * 16, first_output = group.x * 16;
    uint down = simdgroup / 2 * 8, across = simdgroup % 2 * 8;   // this simdgroup's quadrant
    simdgroup_float8x8 sums = simdgroup_float8x8(0.0f);

    for (uint k = 0; k < a.inputs; k += 16) {
        // 1. Elements thread_index and thread_index + 128 of both tiles. Past the end of a matrix
        //    the tile holds 0.
        for (uint e = thread_index; e < 256; e += 128) {
            uint r = e / 16, c = k + e % 16;
            float x_value = 0.0f;
            x_tile[e] = x_value;
            float w_value = 0.0f;
            w_tile[e] = w_value;
        }

        // 2. What has to happen before a simdgroup reads what others have staged?

        // 3. Two steps of 8: the quadrant's rows of x, the quadrant's outputs of w, transposed.
        for (uint kk = 0; kk < 16; kk += 8) {
            uint x_at = 0;   // in x_tile
            uint w_at = 0;   // in w_tile
            simdgroup_float8x8 xs, ws;
            simdgroup_load(xs, x_tile + x_at, 16);
            simdgroup_load(ws, w_tile + w_at, 16, ulong2(0, 0), true);
            simdgroup_multiply_accumulate(sums, xs, ws, sums);
        }

        // 4. And before the next round stages over it?
    }

    // 5. Through threadgroup memory to y: what lies past its edges is not stored.
    uint y_at = 0;
    simdgroup_store(sums, y_tile + y_at, 16);

    for (uint e = thread_index; e < 256; e += 128) {
        uint row = first_row + e / 16, n = first_output + e % 16;
        y[row * a.outputs + n] = y_tile[e];
    }
}
