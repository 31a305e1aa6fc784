// What the kernels that rotate queries and keys have in common.
#pragma once
#include "kv_cache.h"

constant bool INTERLEAVED [[function_constant(0)]];
constant bool QK_NORM [[function_constant(1)]];

// cos and sin of position * frequency; `turns` is the frequency / 2 pi as high + low.
inline float2 cos_sin(float position, float2 turns) {
    float whole = rint(position * turns.x);
    float fraction = fma(position, turns.y, fma(position, turns.x, -whole));
    float angle = fraction * 6.2831853f;
    return float2(cos(angle), sin(angle));
}

// 1 / rms of a head, from all lanes of a simdgroup.
inline float head_scale(device const float *in, uint lane, float epsilon) {
    float squares = 0.0f;
    for (uint d = lane; d < HEAD_DIM; d += 32) {
        float small = in[d] * SHRINK;
        squares = fma(small, small, squares);
    }
    return norm_scale(simd_sum(squares) / float(HEAD_DIM), epsilon);
}

// The dimensions of pair i.
inline uint2 pair_of(uint i, uint pairs) {
    return INTERLEAVED ? uint2(2 * i, 2 * i + 1) : uint2(i, i + pairs);
}

// Dimension d of a head, normed if heads are; 0 in the padding behind it.
inline float element(device const float *in, device const float *norm, float scale, uint d) {
    float x = d < HEAD_DIM ? in[d] : 0.0f;
    return QK_NORM && d < HEAD_DIM ? x * scale * norm[d] : x;
}

// A pair of a head, normed if heads are, and rotated.
inline float2 rotated(device const float *in, device const float *norm, float scale, uint2 pair,
                      float position, float2 turns) {
    float x0 = element(in, norm, scale, pair.x), x1 = element(in, norm, scale, pair.y);
    float2 cs = cos_sin(position, turns);
    return float2(x0 * cs.x - x1 * cs.y, x0 * cs.y + x1 * cs.x);
}
