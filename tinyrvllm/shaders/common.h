// What every shader starts with.
//
// 1. No contraction. Apple's compiler fuses a*b+c into one rounding whatever the compile options
//    say; only this pragma stops it, from Metal 3.2 (macOS 15) on. Before, bits may differ, so no
//    formula may need it. Where a fused multiply-add is meant, the source says fma().
// 2. Helpers below keep one order of summation, so that the same input gives the same bits.
#pragma once
#include <metal_stdlib>
using namespace metal;

#if __METAL_VERSION__ >= 320
#pragma METAL fp contract(off)
#endif

// In front of a loop whose index picks registers: not unrolled, the array would go to memory, and a
// matmul to a tenth of its speed.
#define UNROLL _Pragma("clang loop unroll(full)")

// Sum over a threadgroup of `simdgroups` simdgroups; every thread gets it. One simd_sum, one
// barrier, then each thread adds the few partial sums in index order. `scratch` holds one float
// per simdgroup and may be used once per kernel (a second use would need a second barrier).
inline float threadgroup_sum(float value, threadgroup float *scratch, uint lane, uint simdgroup,
                             uint simdgroups) {
    float partial = simd_sum(value);
    if (lane == 0) scratch[simdgroup] = partial;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = 0.0f;
    for (uint i = 0; i < simdgroups; i++) total += scratch[i];
    return total;
}

// A norm adds up (x * SHRINK)^2, so that squares of 1e20 do not overflow. A power of two changes no
// bit of the result; what underflows by it (x below 5e-10) is nothing beside epsilon.
constant constexpr float SHRINK = 1.0f / 4294967296.0f;   // 2^-32

// What a norm multiplies x by: 1 / sqrt(mean(x^2) + epsilon), from the mean of (x * SHRINK)^2.
template <typename T>
inline T norm_scale(T mean, float epsilon) {
    return rsqrt(mean + epsilon * (SHRINK * SHRINK)) * SHRINK;
}

// Maximum over a threadgroup; the same rules as threadgroup_sum.
inline float threadgroup_max(float value, threadgroup float *scratch, uint lane, uint simdgroup,
                             uint simdgroups) {
    float partial = simd_max(value);
    if (lane == 0) scratch[simdgroup] = partial;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float best = -INFINITY;
    for (uint i = 0; i < simdgroups; i++) best = max(best, scratch[i]);
    return best;
}

// x / (1 + e^-x). For x below -88 e^-x is infinite and the quotient is -0, as it should be.
inline float silu(float x) { return x / (1.0f + exp(-x)); }

// cap * tanh(x / cap): bounds a score or logit smoothly. tanh is 1 in float from 9.01 on; the
// clamp keeps implementations that compute it from exp away from infinity over infinity.
inline float soft_cap(float x, float cap) { return cap * tanh(clamp(x / cap, -15.0f, 15.0f)); }

// GELU by Hendrycks & Gimpel's tanh approximation, the one Gemma was trained with.
inline float gelu_tanh(float x) {
    float inner = 0.7978845608f * fma(0.044715f * x * x, x, x);   // sqrt(2 / pi)
    return 0.5f * x * (1.0f + tanh(clamp(inner, -15.0f, 15.0f)));
}

// erf by Abramowitz & Stegun 7.1.26: |error| < 1.5e-7. MSL has no erf.
inline float erf_approximate(float x) {
    float a = abs(x), t = 1.0f / fma(0.3275911f, a, 1.0f);
    float poly = fma(fma(fma(fma(1.061405429f, t, -1.453152027f), t, 1.421413741f), t,
                         -0.284496736f), t, 0.254829592f) * t;
    return copysign(1.0f - poly * exp(-a * a), x);
}

inline float gelu_exact(float x) { return 0.5f * x * (1.0f + erf_approximate(x * 0.70710678f)); }

// The gate of a feed-forward layer: 0 none (pass through), 1 SiLU, 2 GELU tanh, 3 GELU exact.
inline float activate(uint kind, float x) {
    switch (kind) {
        case 1: return silu(x);
        case 2: return gelu_tanh(x);
        case 3: return gelu_exact(x);
        default: return x;
    }
}
