// Exercise 08, staged.
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
        for (uint e = thread_index; e < 256; e += 128) {
            uint r = e / 16, c = k + e % 16;
            bool in_x = first_row + r < a.rows && c < a.inputs;
            float x_value = in_x ? x[(first_row + r) * a.inputs + c] : 0.0f;
            x_tile[e] = x_value;
            bool in_w = first_output + r < a.outputs && c < a.inputs;
            float w_value = in_w ? w[(first_output + r) * a.inputs + c] : 0.0f;
            w_tile[e] = w_value;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint kk = 0; kk < 16; kk += 8) {
            uint x_at = down * 16 + kk;
            uint w_at = across * 16 + kk;
            simdgroup_float8x8 xs, ws;
            simdgroup_load(xs, x_tile + x_at, 16);
            simdgroup_load(ws, w_tile + w_at, 16, ulong2(0, 0), true);
            simdgroup_multiply_accumulate(sums, xs, ws, sums);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }

    uint y_at = down * 16 + across;
    simdgroup_store(sums, y_tile + y_at, 16);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = thread_index; e < 256; e += 128) {
        uint row = first_row + e / 16, n = first_output + e % 16;
        if (row < a.rows && n < a.outputs) y[row * a.outputs + n] = y_tile[e];
    }
}
