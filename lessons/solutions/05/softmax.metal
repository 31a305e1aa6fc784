// Exercise 05, softmax: two reductions, one barrier each.
#include <metal_stdlib>
using namespace metal;

[[max_total_threads_per_threadgroup(128)]]
kernel void softmax(device const float *x [[buffer(0)]],   // [rows, columns]
                    device float *y [[buffer(1)]],         // [rows, columns]
                    constant uint &columns [[buffer(2)]],
                    uint row [[threadgroup_position_in_grid]],
                    uint thread_index [[thread_index_in_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup float maxima[4], sums[4];
    device const float *in = x + ulong(row) * columns;
    device float *out = y + ulong(row) * columns;

    float best = -INFINITY;
    for (uint i = thread_index; i < columns; i += 128) best = max(best, in[i]);

    float simd_best = simd_max(best);
    if (lane == 0) maxima[simdgroup] = simd_best;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float row_best = -INFINITY;
    for (uint s = 0; s < 4; s++) row_best = max(row_best, maxima[s]);

    float sum = 0.0f;
    for (uint i = thread_index; i < columns; i += 128) {
        sum += row_best == -INFINITY ? 0.0f : exp(in[i] - row_best);
    }

    float simd_total = simd_sum(sum);
    if (lane == 0) sums[simdgroup] = simd_total;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float row_sum = 0.0f;
    for (uint s = 0; s < 4; s++) row_sum += sums[s];

    for (uint i = thread_index; i < columns; i += 128) {
        float value = row_best == -INFINITY ? 0.0f : exp(in[i] - row_best) / row_sum;
        out[i] = value;
    }
}
