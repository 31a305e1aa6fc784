// Exercise 08, tile.
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
                 uint2 group [[threadgroup_position_in_grid]]) {
    simdgroup_float8x8 sums = simdgroup_float8x8(0.0f);
    for (uint k = 0; k < a.inputs; k += 8) {
        uint x_at = group.y * 8 * a.inputs + k;
        uint w_at = group.x * 8 * a.inputs + k;

        simdgroup_float8x8 xs, ws;
        simdgroup_load(xs, x + x_at, a.inputs);
        simdgroup_load(ws, w + w_at, a.inputs, ulong2(0, 0), true);

        simdgroup_multiply_accumulate(sums, xs, ws, sums);
    }

    uint y_at = group.y * 8 * a.outputs + group.x * 8;
    simdgroup_store(sums, y + y_at, a.outputs);
}
