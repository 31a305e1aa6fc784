// Kernels of the bridge's tests.
#include <metal_stdlib>
#include "parts/shared.h"
#include "parts/shared.h"
using namespace metal;

constant uint FACTOR [[function_constant(0)]];
constant float BIAS [[function_constant(1)]];
constant bool NEGATE [[function_constant(2)]];

kernel void vector_add(device const float *a [[buffer(0)]], device const float *b [[buffer(1)]],
                       device float *c [[buffer(2)]], constant uint &n [[buffer(3)]],
                       uint i [[thread_position_in_grid]]) {
    if (i < n) c[i] = a[i] + b[i];
}

kernel void affine(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
                   uint i [[thread_position_in_grid]]) {
    y[i] = (NEGATE ? -1.0f : 1.0f) * float(FACTOR) * x[i] + BIAS;
}

[[max_total_threads_per_threadgroup(64)]]
kernel void geometry(device uint *out [[buffer(0)]], uint3 group [[threadgroup_position_in_grid]],
                     uint3 groups [[threadgroups_per_grid]],
                     uint3 threads [[threads_per_threadgroup]],
                     uint index [[thread_index_in_threadgroup]]) {
    if (all(group == groups - 1) && index == 0) {
        out[0] = groups.x; out[1] = groups.y; out[2] = groups.z;
        out[3] = threads.x; out[4] = threads.y; out[5] = threads.z;
    }
}

kernel void reversed(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
                     threadgroup float *tile [[threadgroup(0)]],
                     uint i [[thread_position_in_threadgroup]],
                     uint n [[threads_per_threadgroup]]) {
    threadgroup float last[4];
    tile[i] = twice(x[i]);
    if (i == 0) last[0] = 1;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[i] = tile[n - 1 - i] * last[0];
}

// a * b + c rounds twice only when contraction is off
kernel void unfused(device const float *x [[buffer(0)]], device float *y [[buffer(1)]],
                    uint i [[thread_position_in_grid]]) {
    y[i] = x[0] * x[1] + x[2];
}

// An argument buffer: addresses of other buffers lie in it.
struct Tables {
    device const uint *order;
    device float *values;
    uint count;
};
kernel void permute(constant Tables &tables [[buffer(0)]], device float *out [[buffer(1)]],
                    uint i [[thread_position_in_grid]]) {
    if (i < tables.count) out[i] = tables.values[tables.order[i]];
}
kernel void fill(constant Tables &tables [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    if (i < tables.count) tables.values[i] = 7;
}
