// Exercise 05, rmsnorm: also right. A halving tree, as CUDA textbooks have it: 8 barriers where
// simd_sum needs one.
#include <metal_stdlib>
using namespace metal;

struct NormArgs {
    uint columns, x_stride, y_stride, residual_stride;
    float epsilon;
    uint has_residual;
};

kernel void rmsnorm(device const float *x [[buffer(0)]], device const float *weight [[buffer(1)]],
                    device const float *residual [[buffer(2)]], device float *y [[buffer(3)]],
                    constant NormArgs &a [[buffer(4)]],
                    uint row [[threadgroup_position_in_grid]],
                    uint t [[thread_position_in_threadgroup]],
                    uint threads [[threads_per_threadgroup]]) {
    threadgroup float tree[128];
    float mine = 0.0f;
    for (uint i = t; i < a.columns; i += threads) {
        float v = x[row * a.x_stride + i];
        mine = fma(v, v, mine);
    }
    tree[t] = mine;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint half_size = threads / 2; half_size > 0; half_size /= 2) {
        if (t < half_size) tree[t] += tree[t + half_size];
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    float scale = 1.0f / sqrt(tree[0] / a.columns + a.epsilon);
    for (uint i = t; i < a.columns; i += threads) {
        float around = a.has_residual ? residual[row * a.residual_stride + i] : 0.0f;
        y[row * a.y_stride + i] = around + x[row * a.x_stride + i] * scale * weight[i];
    }
}
