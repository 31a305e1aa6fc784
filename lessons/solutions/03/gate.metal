// Exercise 03, gate.
#include <metal_stdlib>
using namespace metal;

struct GateArgs {
    uint count;
    uint activation;
};

[[max_total_threads_per_threadgroup(256)]]
kernel void gate(device const float *gate_in [[buffer(0)]],   // [count]
                 device const float *up [[buffer(1)]],        // [count]
                 device float *y [[buffer(2)]],               // [count]
                 constant GateArgs &a [[buffer(3)]],
                 uint i [[thread_position_in_grid]]) {
    if (i >= a.count) return;
    float v = gate_in[i];
    float silu = v / (1.0f + exp(-v));

    float value = silu * up[i];
    y[i] = value;
}
