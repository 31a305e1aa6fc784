// Exercise 12, online.
#include <metal_stdlib>
using namespace metal;

struct AttendArgs {
    uint keys, heads, kv_heads;
    uint window;   // keys that the query sees, the last ones; 0: all
    float scale;
};

[[max_total_threads_per_threadgroup(32)]]
kernel void attend(device const float *q [[buffer(0)]],   // [heads, 32]
                   device const float *k [[buffer(1)]],   // [keys, kv_heads, 32]
                   device const float *v [[buffer(2)]],   // [keys, kv_heads, 32]
                   device float *out [[buffer(3)]],       // [heads, 32]
                   constant AttendArgs &a [[buffer(4)]],
                   uint head [[threadgroup_position_in_grid]],
                   uint lane [[thread_index_in_simdgroup]]) {
    uint kv_head = head / (a.heads / a.kv_heads);
    float mine = q[head * 32 + lane];
    float best = -INFINITY;
    float total = 0.0f;
    float sum = 0.0f;
    for (uint key = 0; key < a.keys; key++) {
        uint at = (key * a.kv_heads + kv_head) * 32 + lane;

        bool visible = a.window == 0 || key + a.window >= a.keys;
        float score = visible ? simd_sum(mine * k[at]) * a.scale : -INFINITY;

        float higher = max(best, score);
        float base = higher == -INFINITY ? 0.0f : higher;
        float correction = exp(best - base);
        float weight = exp(score - base);

        total = total * correction + weight;
        sum = sum * correction + weight * v[at];
        best = higher;
    }
    out[head * 32 + lane] = sum / total;
}
