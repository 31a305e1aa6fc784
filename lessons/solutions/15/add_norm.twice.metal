// Exercise 15, add_norm, another right answer: a sum of its own, the values are added twice.
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

    float mine = 0.0f;
    for (uint i = thread_index; i < a.columns; i += 128) {
        mine = fma(in[i] + add[i], in[i] + add[i], mine);
    }
    mine = simd_sum(mine);
    if (lane == 0) scratch[simdgroup] = mine;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float all = scratch[0] + scratch[1] + scratch[2] + scratch[3];
    float factor = 1.0f / sqrt(all / float(a.columns) + a.epsilon);
    for (uint i = thread_index; i < a.columns; i += 128) {
        in[i] += add[i];
        out[i] = in[i] * factor * weight[i];
    }
}
