// metal_geometric (MSL specification, 6.8). A dot product of four adds (x + z) + (y + w), of three (x + y) + z;
// for half it is accumulated in float and rounded once.
#pragma once
#include "math.h"

namespace metal {
namespace detail {
MSL_INLINE float sum_of(float2 p) { return p.x + p.y; }
MSL_INLINE float sum_of(float3 p) { return p.x + p.y + p.z; }
MSL_INLINE float sum_of(float4 p) { return (p.x + p.z) + (p.y + p.w); }
}  // namespace detail

#define MSL_GEOMETRIC(T)                                                                                   \
  MSL_INLINE detail::elem<T> dot(T a, T b) {                                                               \
    return (detail::elem<T>)detail::sum_of(detail::widen(a) * detail::widen(b));                           \
  }                                                                                                        \
  MSL_INLINE detail::elem<T> length_squared(T a) { return dot(a, a); }                                     \
  MSL_INLINE detail::elem<T> length(T a) {                                                                 \
    return (detail::elem<T>)__builtin_sqrtf(detail::sum_of(detail::widen(a) * detail::widen(a)));          \
  }                                                                                                        \
  MSL_INLINE detail::elem<T> distance(T a, T b) { return length(a - b); }                                  \
  MSL_INLINE detail::elem<T> distance_squared(T a, T b) { return length_squared(a - b); }                  \
  MSL_INLINE T normalize(T a) { return a * rsqrt(dot(a, a)); }                                             \
  MSL_INLINE T faceforward(T n, T i, T reference) { return dot(reference, i) < 0 ? n : -n; }               \
  MSL_INLINE T reflect(T i, T n) { return i - 2 * dot(n, i) * n; }                                         \
  MSL_INLINE T refract(T i, T n, detail::elem<T> eta) {                                                    \
    auto d = dot(n, i), k = 1 - eta * eta * (1 - d * d);                                                   \
    return k < 0 ? (T)0 : eta * i - (eta * d + sqrt((detail::elem<T>)k)) * n;                              \
  }
MSL_GEOMETRIC(float2) MSL_GEOMETRIC(float3) MSL_GEOMETRIC(float4)
MSL_GEOMETRIC(half2) MSL_GEOMETRIC(half3) MSL_GEOMETRIC(half4)
#undef MSL_GEOMETRIC
#define MSL_CROSS(T)                                                                                       \
  MSL_INLINE T cross(T a, T b) { return T{a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x}; }
MSL_CROSS(float3) MSL_CROSS(half3)
#undef MSL_CROSS
}  // namespace metal
