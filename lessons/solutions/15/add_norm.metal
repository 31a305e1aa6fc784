// Exercise 15, add_norm.
#include "common.h"

struct AddNormArgs {
    uint columns;
    float epsilon;
};

[[max_total_threads_per_threadgroup(128)]]
kernel void add_norm(device float *x [[buffer(0)]],              // [rows, columns]
                     device const float *r [[buffer(1)]],        // [rows, columns]
                     device const float *weight [[buffer(2)]],   // [columns]
                     device float *y [[buffer(3)]],              // [rows, columns]
                     constant AddNormArgs &a [[buffer(4)]],
                     uint row [[threadgroup_position_in_grid]],
                     uint thread_index [[thread_index_in_threadgroup]],
                     uint lane [[thread_index_in_simdgroup]],
                     uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup float scratch[4];   // for threadgroup_sum
    device float *in = x + ulong(row) * a.columns;
    device const float *add = r + ulong(row) * a.columns;
    device float *out = y + ulong(row) * a.columns;

    float squares = 0.0f;
    for (uint i = thread_index; i < a.columns; i += 128) {
        float value = in[i] + add[i];
        in[i] = value;
        squares += value * value;
    }

    float total = threadgroup_sum(squares, scratch, lane, simdgroup, 4);
    float scale = rsqrt(total / float(a.columns) + a.epsilon);

    for (uint i = thread_index; i < a.columns; i += 128) {
        out[i] = in[i] * scale * weight[i];
    }
}
