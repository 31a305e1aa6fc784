#include <metal_stdlib>
using namespace metal;

// Online softmax over keys in pages of 16; head_dim 64. A threadgroup owns a head, a simdgroup takes every fourth key.
kernel void attention_decode(device const float *q [[buffer(0)]],      // [heads, 64]
                             device const half *keys [[buffer(1)]],    // [pages * 16, kv_heads, 64]
                             device const half *values [[buffer(2)]],  // as keys
                             device const uint *pages [[buffer(3)]],   // [ceil(length / 16)]
                             device float *out [[buffer(4)]],          // [heads, 64]
                             constant uint &length [[buffer(5)]],
                             constant uint &kv_heads [[buffer(6)]],
                             uint head [[threadgroup_position_in_grid]],
                             uint heads [[threadgroups_per_grid]],
                             uint lane [[thread_index_in_simdgroup]],
                             uint simdgroup [[simdgroup_index_in_threadgroup]],
                             uint simdgroups [[simdgroups_per_threadgroup]])
{
    threadgroup float maxima[8], sums[8];
    threadgroup float2 parts[8][32];
    uint kv_head = head / (heads / kv_heads);
    float2 mine = ((device const float2 *)(q + head * 64))[lane] * 0.125;
    float m = -INFINITY, s = 0;
    float2 sum = float2(0);
    for (uint t = simdgroup; t < length; t += simdgroups) {
        uint at = ((pages[t / 16] * 16 + t % 16) * kv_heads + kv_head) * 64;
        float score = simd_sum(dot(mine, float2(((device const half2 *)(keys + at))[lane])));
        float larger = max(m, score), shrink = exp(m - larger), p = exp(score - larger);
        s = s * shrink + p;
        sum = sum * shrink + p * float2(((device const half2 *)(values + at))[lane]);
        m = larger;
    }
    if (lane == 0) { maxima[simdgroup] = m; sums[simdgroup] = s; }
    parts[simdgroup][lane] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup != 0) return;
    float largest = -INFINITY, total = 0;
    for (uint i = 0; i < simdgroups; i++) largest = max(largest, maxima[i]);
    float2 result = float2(0);
    for (uint i = 0; i < simdgroups; i++) {
        if (maxima[i] == -INFINITY) continue;
        float f = exp(maxima[i] - largest);
        total += sums[i] * f;
        result += f * parts[i][lane];
    }
    ((device float2 *)(out + head * 64))[lane] = result / total;
}
