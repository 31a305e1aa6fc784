// Exercise 05, softmax: also right. One pass finds maximum and sum together (the online softmax of
// lesson 12): a sum found with an older, smaller maximum is scaled down.
#include <metal_stdlib>
using namespace metal;

struct Running { float best, sum; };

inline Running merged(Running a, Running b) {
    float best = max(a.best, b.best);
    if (best == -INFINITY) return {-INFINITY, 0.0f};
    return {best, a.sum * exp(a.best - best) + b.sum * exp(b.best - best)};
}

kernel void softmax(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
                    constant uint &columns [[buffer(2)]],
                    uint row [[threadgroup_position_in_grid]],
                    uint t [[thread_index_in_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup Running parts[4];
    device const float *in = x + row * columns;
    Running mine = {-INFINITY, 0.0f};
    for (uint i = t; i < columns; i += 128) mine = merged(mine, {in[i], 1.0f});
    for (ushort step = 1; step < 32; step *= 2) {
        Running other = {simd_shuffle_xor(mine.best, step), simd_shuffle_xor(mine.sum, step)};
        mine = merged(mine, other);
    }
    if (lane == 0) parts[simdgroup] = mine;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    Running all = merged(merged(parts[0], parts[1]), merged(parts[2], parts[3]));
    for (uint i = t; i < columns; i += 128) {
        y[row * columns + i] = all.sum == 0.0f ? 0.0f : exp(in[i] - all.best) / all.sum;
    }
}
