// Exercise 09, ksplit: the 4 simdgroups of a threadgroup share K, in steps of 16.
//
//     y[row, n] = sum over k of x[row, k] * weight[n, k]
//
// Complete steps 1 to 3 and keep the names of the variables. Check:  python -m lessons.check 09
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

    // 1. This simdgroup's part of the sum: steps simdgroup, simdgroup + 4, ... of 16 each.
    float sum = 0.0f;

    // 2. Leave it where the others find it, and wait until all are there.
    partial[simdgroup][lane] = sum;

    // 3. One simdgroup adds the four parts, in order, and writes.
    if (simdgroup == 0 && inside) {
        float total = sum;
        y[row * a.outputs + n] = total;
    }
}
