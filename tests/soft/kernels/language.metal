// Odds and ends of the language, as kernel authors use them.
#include <metal_stdlib>
#include "language.h"
using namespace metal;

constant float table[4] = {0.5, 1.0, 1.5, 2.0};
typedef vec<float, 4> four;
template <typename T> using pair = vec<T, 2>;

struct Shape {
    uint rows;
    float3 origin;  // 16 bytes, as in Metal
    half scale;
};

struct Scratch {
    threadgroup float *values;
    uint lane;
    float sum() const { return simd_sum(values[lane]); }
};

struct Arguments {
    device float *out [[id(0)]];
    constant Shape *shape [[id(1)]];
};

template <typename T> static T twice(T x) { return x + x; }

kernel void expressions(device float *out [[buffer(0)]], device const packed_float3 *packed [[buffer(1)]],
                        constant Shape &shape [[buffer(2)]], uint i [[thread_position_in_grid]])
{
    half4 h = half4(1.0h, 2.0h, 3.0h, 4.0h);
    four f = four(h);
    float4 g = float4(f.xy, f.wz) + float4(0.5);
    f.xy = g.zw;
    f.zw += float2(1, 2);
    float3 v = float3(packed[i]);
    auto square = [](float x) { return x * x; };
    bool4 positive = f > float4(3.6);
    float2x2 m = float2x2(float2(1, 2), float2(3, 4));
    float2 mv = m * float2(1, 10);
    array<float, 3> numbers = {{1, 2, 3}};
    float r[] = {
        f.x, f.y, f.z, f.w,                                    // 4.5 3.5 4 6
        v.x + 10 * v.y + 100 * v.z,                            // 210 for i = 0
        float(as_type<uint>(1.5f)),                            // 0x3fc00000
        float(as_type<half2>(0x3c004000u).y),                  // 1
        float(ulong(1) << 40 >> 38),                           // 4
        ((float4)h * 2).w,                                     // 8
        table[2], SQUARE(3) + square(2.0),                     // 1.5 13
        all(positive) ? 1.0 : 0.0, any(positive) ? 1.0 : 0.0,  // 0 1
        mv.x, mv.y, numbers[1] + twice(numbers[2]),            // 31 42 8
        1.0 / 3, float(pair<half>(half2(5, 6)).y),             // 1/3 6
        float(shape.rows) + shape.origin.z + float(shape.scale), float(sizeof(Shape)),
    };
    for (uint k = 0; k < sizeof(r) / sizeof(float); k++) out[i * sizeof(r) / sizeof(float) + k] = r[k];
}

kernel void half_arithmetic(device const half2 *ab [[buffer(0)]], device half *out [[buffer(1)]],
                            uint i [[thread_position_in_grid]])
{
    half a = ab[i].x, b = ab[i].y;
    out[i * 4] = a * b + a;
    out[i * 4 + 1] = a / b;
    out[i * 4 + 2] = sqrt(abs(a));
    out[i * 4 + 3] = half(float(a) * float(b));
}

kernel void float_arithmetic(device const float4 *abc [[buffer(0)]], device float2 *out [[buffer(1)]],
                             uint i [[thread_position_in_grid]])
{
    float a = abc[i].x, b = abc[i].y, c = abc[i].z;
    out[i] = float2(a * b + c, fma(a, b, c));
}

// Lanes under 10 and the others go different ways and meet again.
kernel void divergence(device float *out [[buffer(0)]], uint tid [[thread_index_in_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]])
{
    float v = lane + 1;
    out[tid] = lane < 10 ? simd_sum(v) : simd_max(v);
    for (uint k = 0; k < lane % 3; k++) v += simd_sum(1.0f);
    out[64 + tid] = simd_sum(v);
}

// Both blocks' tiles are alive at once on a GPU: they must not share memory.
kernel void sibling_blocks(device float *out [[buffer(0)]], uint tid [[thread_index_in_threadgroup]],
                           uint threads [[threads_per_threadgroup]])
{
    float mine;
    {
        threadgroup float first[64];
        first[tid] = tid;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        mine = first[threads - 1 - tid];
    }
    {
        threadgroup float second[64];
        second[tid] = 100 + tid;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        mine += second[threads - 1 - tid];
    }
    out[tid] = mine;
}

kernel void scratch_struct(device float *out [[buffer(0)]], uint tid [[thread_index_in_threadgroup]],
                           uint lane [[thread_index_in_simdgroup]])
{
    threadgroup float memory[64];
    memory[tid] = tid;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    Scratch s = {memory + (tid - lane), lane};
    out[tid] = s.sum();
}

kernel void argument_buffer(constant Arguments &arguments [[buffer(0)]], uint i [[thread_position_in_grid]])
{
    arguments.out[i] = arguments.shape->rows + i;
}

// The first `count` threads of a threadgroup are left over: fewer threads at the grid's edge
kernel void early_return(device float *out [[buffer(0)]], uint tid [[thread_index_in_threadgroup]],
                         uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]])
{
    if (lane >= 20) return;
    out[i] = simd_sum(float(tid));
}
