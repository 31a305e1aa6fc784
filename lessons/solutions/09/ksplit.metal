// Exercise 09, ksplit: steps of 16, dealt out to the simdgroups in turn.
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

    float sum = 0.0f;
    for (uint step = simdgroup; step * 16 < a.inputs; step += 4) {
        uint first = step * 16;
        for (uint k = first; inside && k < min(first + 16, a.inputs); k++) {
            sum = fma(x[row * a.inputs + k], float(weight[n * a.inputs + k]), sum);
        }
    }

    partial[simdgroup][lane] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);

    if (simdgroup == 0 && inside) {
        float total = 0.0f;
        for (uint s = 0; s < 4; s++) {
            total += partial[s][lane];
        }
        y[row * a.outputs + n] = total;
    }
}
