// One thread an element: what is not fused into a neighbour, and the unfused forms of what is.
//
// 1. `count` may be less than the grid: the last threadgroup tests it. Grids are recorded for
//    the largest batch of a bucket.
// 2. y may be one of the inputs: each thread reads only the element that it writes.
#include "common.h"

[[max_total_threads_per_threadgroup(256)]]
kernel void add(device const float *a [[buffer(0)]], device const float *b [[buffer(1)]],
                device float *y [[buffer(2)]], constant uint &count [[buffer(3)]],
                uint i [[thread_position_in_grid]]) {
    if (i < count) y[i] = a[i] + b[i];
}

struct GateArgs {   // mirrored by kernels/elementwise.py
    uint count, activation;   // see activate()
};

// y = activation(gate) * up
[[max_total_threads_per_threadgroup(256)]]
kernel void gate(device const float *gate_in [[buffer(0)]], device const float *up [[buffer(1)]],
                 device float *y [[buffer(2)]], constant GateArgs &a [[buffer(3)]],
                 uint i [[thread_position_in_grid]]) {
    if (i < a.count) y[i] = activate(a.activation, gate_in[i]) * up[i];
}

struct SoftcapArgs {   // mirrored by kernels/elementwise.py
    uint count;
    float cap;
};

// y = cap * tanh(x / cap)
[[max_total_threads_per_threadgroup(256)]]
kernel void softcap(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
                    constant SoftcapArgs &a [[buffer(2)]], uint i [[thread_position_in_grid]]) {
    if (i < a.count) y[i] = soft_cap(x[i], a.cap);
}

[[max_total_threads_per_threadgroup(256)]]
kernel void to_half(device const float *x [[buffer(0)]], device half *y [[buffer(1)]],
                    constant uint &count [[buffer(2)]], uint i [[thread_position_in_grid]]) {
    if (i < count) y[i] = half(x[i]);
}

[[max_total_threads_per_threadgroup(256)]]
kernel void to_float(device const half *x [[buffer(0)]], device float *y [[buffer(1)]],
                     constant uint &count [[buffer(2)]], uint i [[thread_position_in_grid]]) {
    if (i < count) y[i] = float(x[i]);
}

[[max_total_threads_per_threadgroup(256)]]
kernel void copy(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
                 constant uint &count [[buffer(2)]], uint i [[thread_position_in_grid]]) {
    if (i < count) y[i] = x[i];
}

struct MultiplyAddsArgs {   // mirrored by kernels/elementwise.py
    uint count, rounds;
};

// y = the sum of 8 float4 that start at i, i + 1, ... and become v / 2 + 1 in each round: chains of
// multiply-adds that wait for no memory and not for each other. What the ALUs can do at most.
[[max_total_threads_per_threadgroup(256)]]
kernel void multiply_adds(device float *y [[buffer(0)]],
                          constant MultiplyAddsArgs &a [[buffer(1)]],
                          uint i [[thread_position_in_grid]]) {
    if (i >= a.count) return;
    float4 v[8];
    UNROLL for (ushort j = 0; j < 8; j++) v[j] = float4(float(i + j));
    for (uint r = 0; r < a.rounds; r++) {
        UNROLL for (ushort j = 0; j < 8; j++) v[j] = fma(v[j], float4(0.5f), float4(1.0f));
    }
    float4 sum = float4(0.0f);
    UNROLL for (ushort j = 0; j < 8; j++) sum += v[j];
    y[i] = (sum.x + sum.y) + (sum.z + sum.w);
}
