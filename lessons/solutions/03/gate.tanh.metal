// Exercise 03, gate: also right. The logistic function through tanh, and a guarded store.
#include <metal_stdlib>
using namespace metal;

struct GateArgs { uint count, activation; };

inline float logistic(float v) { return 0.5f * (1.0f + tanh(0.5f * v)); }

kernel void gate(device const float *g [[buffer(0)]], device const float *u [[buffer(1)]],
                 device float *out [[buffer(2)]], constant GateArgs &a [[buffer(3)]],
                 uint group [[threadgroup_position_in_grid]],
                 uint t [[thread_position_in_threadgroup]]) {
    uint e = group * 256 + t;
    if (e < a.count) out[e] = u[e] * g[e] * logistic(g[e]);
}
