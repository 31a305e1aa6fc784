// Exercise 03, gate: one thread for each element.
//
//     y[i] = silu(gate[i]) * up[i]          silu(v) = v / (1 + exp(-v))
//
// Write the body and keep the names of the variables. Check:  python -m lessons.check 03
#include <metal_stdlib>
using namespace metal;

struct GateArgs {
    uint count;        // elements; the grid is whole threadgroups of 256, so it may have more threads
    uint activation;   // always 1 here: silu
};

[[max_total_threads_per_threadgroup(256)]]
kernel void gate(device const float *gate_in [[buffer(0)]],   // [count]
                 device const float *up [[buffer(1)]],        // [count]
                 device float *y [[buffer(2)]],               // [count]
                 constant GateArgs &a [[buffer(3)]],
                 uint i [[thread_position_in_grid]]) {
    // 1. Threads past the last element do nothing.

    // 2. silu of the gate's element.
    float v = gate_in[0];
    float silu = v;

    // 3. This thread's element of y.
    float value = silu;
}
