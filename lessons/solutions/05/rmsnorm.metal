// Exercise 05, rmsnorm: one barrier, every thread adds the four partial sums itself.
#include <metal_stdlib>
using namespace metal;

struct NormArgs {
    uint columns, x_stride, y_stride, residual_stride;
    float epsilon;
    uint has_residual;
};

[[max_total_threads_per_threadgroup(128)]]
kernel void rmsnorm(device const float *x [[buffer(0)]],          // [rows, columns]
                    device const float *weight [[buffer(1)]],     // [columns]
                    device const float *residual [[buffer(2)]],   // [rows, columns]
                    device float *y [[buffer(3)]],                // [rows, columns]
                    constant NormArgs &a [[buffer(4)]],
                    uint row [[threadgroup_position_in_grid]],
                    uint thread_index [[thread_index_in_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup float scratch[4];
    device const float *in = x + ulong(row) * a.x_stride;

    float squares = 0.0f;
    for (uint i = thread_index; i < a.columns; i += 128) {
        squares += in[i] * in[i];
    }

    float partial = simd_sum(squares);
    if (lane == 0) scratch[simdgroup] = partial;
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float total = 0.0f;
    for (uint s = 0; s < 4; s++) total += scratch[s];

    float mean = total / float(a.columns);
    float scale = rsqrt(mean + a.epsilon);

    for (uint i = thread_index; i < a.columns; i += 128) {
        float value = in[i] * scale * weight[i];
        if (a.has_residual) value += residual[ulong(row) * a.residual_stride + i];
        y[ulong(row) * a.y_stride + i] = value;
    }
}
