// Exercise 09, ksplit, another right answer: each simdgroup has a quarter of K in one piece.
#include <metal_stdlib>
using namespace metal;

struct KsplitArgs {
    uint rows, outputs, inputs;   // rows: up to 8
};

[[max_total_threads_per_threadgroup(128)]]
kernel void ksplit(device const float *x [[buffer(0)]],       // [rows, inputs]
                   device const half *weight [[buffer(1)]],   // [outputs, inputs]
                   device float *y [[buffer(2)]],             // [rows, outputs]
                   constant KsplitArgs &a [[buffer(3)]],
                   uint group [[threadgroup_position_in_grid]],
                   uint lane [[thread_index_in_simdgroup]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup float partial[4][32];   // [simdgroup, lane]
    uint row = lane / 4, n = group * 4 + lane % 4;
    bool inside = row < a.rows && n < a.outputs;

    uint quarter = (a.inputs + 3) / 4;
    uint first = simdgroup * quarter, end = min(first + quarter, a.inputs);
    float sum = 0.0f;
    for (uint k = first; inside && k < end; k++) {
        sum += x[row * a.inputs + k] * float(weight[n * a.inputs + k]);
    }
    partial[simdgroup][lane] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup == 3 && inside) {
        y[row * a.outputs + n] =
            ((partial[0][lane] + partial[1][lane]) + partial[2][lane]) + partial[3][lane];
    }
}
