// Exercise 08, tile: also right. Computes y^T = W x^T and stores it transposed; two sums take turns,
// so that neither waits for the other.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

struct TileArgs { uint rows, outputs, inputs; };

kernel void tile(device const float *x [[buffer(0)]], device const float *w [[buffer(1)]],
                 device float *y [[buffer(2)]], constant TileArgs &a [[buffer(3)]],
                 uint2 group [[threadgroup_position_in_grid]]) {
    device const float *rows = x + group.y * 8 * a.inputs, *outputs = w + group.x * 8 * a.inputs;
    simdgroup_matrix<float, 8, 8> even(0.0f), odd(0.0f), left, right;
    for (uint k = 0; k < a.inputs; k += 16) {
        simdgroup_load(left, outputs + k, a.inputs);
        simdgroup_load(right, rows + k, a.inputs, ulong2(0, 0), true);
        simdgroup_multiply_accumulate(even, left, right, even);
        if (k + 8 >= a.inputs) break;
        simdgroup_load(left, outputs + k + 8, a.inputs);
        simdgroup_load(right, rows + k + 8, a.inputs, ulong2(0, 0), true);
        simdgroup_multiply_accumulate(odd, left, right, odd);
    }
    simdgroup_matrix<float, 8, 8> one(1.0f);
    simdgroup_multiply_accumulate(even, one, odd, even);   // even += odd
    simdgroup_store(even, y + group.y * 8 * a.outputs + group.x * 8, a.outputs, ulong2(0, 0), true);
}
