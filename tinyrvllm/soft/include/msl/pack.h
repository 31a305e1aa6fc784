// metal_pack: conversions between small integers and floats in [0, 1] (unorm) or [-1, 1] (snorm) (MSL specification,
// 6.15). To float: v / max; from float: clamp, scale, round to even. Half versions go through float.
#pragma once
#include "math.h"

namespace metal {
namespace detail {
// Component i of x: `bits` wide, at position `at`.
MSL_INLINE float unorm(uint x, int at, int bits) {
  uint top = (1u << bits) - 1;
  return (float)(x >> at & top) / (float)top;
}
MSL_INLINE float snorm(uint x, int at, int bits) {
  float v = (float)((int)(x << (32 - bits - at)) >> (32 - bits)) / (float)((1 << (bits - 1)) - 1);
  return v < -1 ? -1 : v;
}
MSL_INLINE uint to_unorm(float v, int at, int bits) {
  return (uint)__builtin_rintf(saturate(v) * (float)((1u << bits) - 1)) << at;
}
MSL_INLINE uint to_snorm(float v, int at, int bits) {
  int n = (int)__builtin_rintf(clamp(v, -1.0f, 1.0f) * (float)((1 << (bits - 1)) - 1));
  return ((uint)n & ((1u << bits) - 1)) << at;
}
// The sRGB curve (IEC 61966-2-1).
MSL_INLINE float from_srgb(float c) { return c <= 0.04045f ? c / 12.92f : __builtin_powf((c + 0.055f) / 1.055f, 2.4f); }
MSL_INLINE float to_srgb(float c) {  // outside of 0..1 is still outside, which to_unorm mends
  return c < 0.0031308f ? 12.92f * c : 1.055f * __builtin_powf(c, 1 / 2.4f) - 0.055f;
}
}  // namespace detail

#define MSL_PACK(kind)                                                                                        \
  MSL_INLINE float4 unpack_##kind##4x8_to_float(uint x) {                                                     \
    return float4{detail::kind(x, 0, 8), detail::kind(x, 8, 8), detail::kind(x, 16, 8), detail::kind(x, 24, 8)}; \
  }                                                                                                           \
  MSL_INLINE float2 unpack_##kind##2x16_to_float(uint x) {                                                    \
    return float2{detail::kind(x, 0, 16), detail::kind(x, 16, 16)};                                           \
  }                                                                                                           \
  MSL_INLINE half4 unpack_##kind##4x8_to_half(uint x) {                                                       \
    return detail::narrow<half4>(unpack_##kind##4x8_to_float(x));                                             \
  }                                                                                                           \
  MSL_INLINE half2 unpack_##kind##2x16_to_half(uint x) {                                                      \
    return detail::narrow<half2>(unpack_##kind##2x16_to_float(x));                                            \
  }                                                                                                           \
  MSL_INLINE uint pack_float_to_##kind##4x8(float4 v) {                                                       \
    return detail::to_##kind(v.x, 0, 8) | detail::to_##kind(v.y, 8, 8) | detail::to_##kind(v.z, 16, 8) |      \
           detail::to_##kind(v.w, 24, 8);                                                                     \
  }                                                                                                           \
  MSL_INLINE uint pack_float_to_##kind##2x16(float2 v) {                                                      \
    return detail::to_##kind(v.x, 0, 16) | detail::to_##kind(v.y, 16, 16);                                    \
  }                                                                                                           \
  MSL_INLINE uint pack_half_to_##kind##4x8(half4 v) { return pack_float_to_##kind##4x8(detail::widen(v)); }   \
  MSL_INLINE uint pack_half_to_##kind##2x16(half2 v) { return pack_float_to_##kind##2x16(detail::widen(v)); }
MSL_PACK(unorm)
MSL_PACK(snorm)
#undef MSL_PACK

MSL_INLINE float4 unpack_unorm4x8_srgb_to_float(uint x) {
  float4 v = unpack_unorm4x8_to_float(x);
  return float4{detail::from_srgb(v.x), detail::from_srgb(v.y), detail::from_srgb(v.z), v.w};
}
MSL_INLINE uint pack_float_to_srgb_unorm4x8(float4 v) {
  return pack_float_to_unorm4x8(float4{detail::to_srgb(v.x), detail::to_srgb(v.y), detail::to_srgb(v.z), v.w});
}
MSL_INLINE float4 unpack_unorm10a2_to_float(uint x) {
  return float4{detail::unorm(x, 0, 10), detail::unorm(x, 10, 10), detail::unorm(x, 20, 10), detail::unorm(x, 30, 2)};
}
MSL_INLINE uint pack_float_to_unorm10a2(float4 v) {
  return detail::to_unorm(v.x, 0, 10) | detail::to_unorm(v.y, 10, 10) | detail::to_unorm(v.z, 20, 10) |
         detail::to_unorm(v.w, 30, 2);
}
MSL_INLINE float3 unpack_unorm565_to_float(ushort x) {
  return float3{detail::unorm(x, 11, 5), detail::unorm(x, 5, 6), detail::unorm(x, 0, 5)};
}
MSL_INLINE ushort pack_float_to_unorm565(float3 v) {
  return (ushort)(detail::to_unorm(v.x, 11, 5) | detail::to_unorm(v.y, 5, 6) | detail::to_unorm(v.z, 0, 5));
}
}  // namespace metal
