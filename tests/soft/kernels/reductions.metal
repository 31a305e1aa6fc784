#include <metal_stdlib>
using namespace metal;

// The sum over a threadgroup: over each simdgroup, then over one value per simdgroup.
static float threadgroup_sum(float v, threadgroup float *partial, uint lane, uint simdgroup, uint count)
{
    v = simd_sum(v);
    if (lane == 0) partial[simdgroup] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return simd_sum(lane < count ? partial[lane] : 0.0f);
}

// y = x / sqrt(mean(x^2) + eps) * weight for each row of x [rows, n]
kernel void rmsnorm(device const half *x [[buffer(0)]],
                    device const float *weight [[buffer(1)]],
                    device half *y [[buffer(2)]],
                    constant uint &n [[buffer(3)]],
                    constant float &eps [[buffer(4)]],
                    uint row [[threadgroup_position_in_grid]],
                    uint tid [[thread_index_in_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]],
                    uint simdgroups [[simdgroups_per_threadgroup]],
                    uint threads [[threads_per_threadgroup]])
{
    threadgroup float partial[32];
    device const half *r = x + row * n;
    float squares = 0;
    for (uint i = tid; i < n; i += threads) squares += float(r[i]) * float(r[i]);
    squares = threadgroup_sum(squares, partial, lane, simdgroup, simdgroups);
    float k = rsqrt(squares / n + eps);
    for (uint i = tid; i < n; i += threads) y[row * n + i] = half(float(r[i]) * k * weight[i]);
}

kernel void softmax(device const float *x [[buffer(0)]],
                    device float *y [[buffer(1)]],
                    constant uint &n [[buffer(2)]],
                    threadgroup float *partial [[threadgroup(0)]],  // [32]
                    uint row [[threadgroup_position_in_grid]],
                    uint tid [[thread_position_in_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]],
                    uint simdgroups [[simdgroups_per_threadgroup]],
                    uint threads [[threads_per_threadgroup]])
{
    device const float *r = x + row * n;
    float m = -INFINITY;
    for (uint i = tid; i < n; i += threads) m = max(m, r[i]);
    m = simd_max(m);
    if (lane == 0) partial[simdgroup] = m;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    m = simd_max(lane < simdgroups ? partial[lane] : -INFINITY);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // partial is written once more below
    float s = 0;
    for (uint i = tid; i < n; i += threads) s += precise::exp(r[i] - m);
    s = threadgroup_sum(s, partial, lane, simdgroup, simdgroups);
    for (uint i = tid; i < n; i += threads) y[row * n + i] = exp(r[i] - m) / s;
}

// The index of the largest value; NaN never wins, ties go to the lowest index.
kernel void argmax(device const float *x [[buffer(0)]],
                   device uint *out [[buffer(1)]],
                   constant uint &n [[buffer(2)]],
                   uint3 tid [[thread_position_in_threadgroup]],
                   uint3 threads [[threads_per_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]],
                   uint simdgroups [[simdgroups_per_threadgroup]])
{
    threadgroup float values[32];
    threadgroup uint indices[32];
    float best = -INFINITY;
    uint at = 0;
    for (uint i = tid.x; i < n; i += threads.x)
        if (x[i] > best) { best = x[i]; at = i; }
    for (ushort step = 16; step > 0; step /= 2) {
        float value = simd_shuffle_xor(best, step);
        uint index = simd_shuffle_xor(at, step);
        if (value > best || (value == best && index < at)) { best = value; at = index; }
    }
    if (lane == 0) { values[simdgroup] = best; indices[simdgroup] = at; }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (tid.x != 0) return;
    for (uint s = 1; s < simdgroups; s++)
        if (values[s] > best || (values[s] == best && indices[s] < at)) { best = values[s]; at = indices[s]; }
    out[0] = at;
}
