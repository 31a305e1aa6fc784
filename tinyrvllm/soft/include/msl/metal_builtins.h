// Apple's compiler builtins that libraries call directly, to add overloads for types of their own
// (MLX does for bfloat). The last argument of a maths builtin chooses fast or precise maths; there is one kind here.
#pragma once
#include "simd_ops.h"

#define __METAL_MAYBE_FAST_MATH__ 0
#define __METAL_FAST_MATH__ 1
#define __METAL_PRECISE_MATH__ 2

#define MSL_BUILTIN_1(name) template <class T> MSL_INLINE T __metal_##name(T x, int) { return metal::name(x); }
#define MSL_BUILTIN_2(name) template <class T> MSL_INLINE T __metal_##name(T x, T y, int) { return metal::name(x, y); }
#define MSL_BUILTIN_3(name) \
  template <class T> MSL_INLINE T __metal_##name(T x, T y, T z, int) { return metal::name(x, y, z); }
MSL_BUILTIN_1(acos) MSL_BUILTIN_1(acosh) MSL_BUILTIN_1(asin) MSL_BUILTIN_1(asinh)
MSL_BUILTIN_1(atan) MSL_BUILTIN_1(atanh) MSL_BUILTIN_1(ceil) MSL_BUILTIN_1(cos) MSL_BUILTIN_1(cosh)
MSL_BUILTIN_1(cospi) MSL_BUILTIN_1(exp) MSL_BUILTIN_1(exp10) MSL_BUILTIN_1(exp2) MSL_BUILTIN_1(fabs)
MSL_BUILTIN_1(floor) MSL_BUILTIN_1(fract) MSL_BUILTIN_1(log) MSL_BUILTIN_1(log10)
MSL_BUILTIN_1(log2) MSL_BUILTIN_1(rint) MSL_BUILTIN_1(round) MSL_BUILTIN_1(rsqrt) MSL_BUILTIN_1(sin)
MSL_BUILTIN_1(sinh) MSL_BUILTIN_1(sinpi) MSL_BUILTIN_1(sqrt) MSL_BUILTIN_1(tan) MSL_BUILTIN_1(tanh)
MSL_BUILTIN_1(tanpi) MSL_BUILTIN_1(trunc) MSL_BUILTIN_2(atan2) MSL_BUILTIN_2(divide)
MSL_BUILTIN_2(fmax) MSL_BUILTIN_2(fmin) MSL_BUILTIN_2(fmod) MSL_BUILTIN_2(pow) MSL_BUILTIN_2(powr)
MSL_BUILTIN_3(fmax3) MSL_BUILTIN_3(fmin3) MSL_BUILTIN_3(fmedian3)
template <class T> MSL_INLINE T __metal_fma(T a, T b, T c) { return metal::fma(a, b, c); }
template <class T> MSL_INLINE T __metal_nextafter(T a, T b) { return metal::nextafter(a, b); }
template <class T> MSL_INLINE T __metal_ldexp(T x, int e, int) { return metal::ldexp(x, e); }
template <class T> MSL_INLINE T __metal_frexp(T x, thread int *e) { return metal::frexp(x, *e); }
#undef MSL_BUILTIN_1
#undef MSL_BUILTIN_2
#undef MSL_BUILTIN_3

#define MSL_BUILTIN_SIMD(name) \
  template <class T> MSL_INLINE T __metal_##name(T v, MSL_SITE) { return metal::name(v, site); }
#define MSL_BUILTIN_SHUFFLE(name) \
  template <class T> MSL_INLINE T __metal_##name(T v, ushort n, MSL_SITE) { return metal::name(v, n, site); }
#define MSL_BUILTIN_FILL(name) \
  template <class T> MSL_INLINE T __metal_##name(T v, T f, ushort d, ushort m, MSL_SITE) { \
    return metal::name(v, f, d, m, site);                                                  \
  }
MSL_BUILTIN_SIMD(simd_sum) MSL_BUILTIN_SIMD(simd_product) MSL_BUILTIN_SIMD(simd_max)
MSL_BUILTIN_SIMD(simd_min) MSL_BUILTIN_SIMD(simd_prefix_inclusive_sum)
MSL_BUILTIN_SIMD(simd_prefix_exclusive_sum) MSL_BUILTIN_SIMD(simd_prefix_inclusive_product)
MSL_BUILTIN_SIMD(simd_prefix_exclusive_product) MSL_BUILTIN_SHUFFLE(simd_broadcast)
MSL_BUILTIN_SHUFFLE(simd_shuffle) MSL_BUILTIN_SHUFFLE(simd_shuffle_down)
MSL_BUILTIN_SHUFFLE(simd_shuffle_up) MSL_BUILTIN_SHUFFLE(simd_shuffle_xor)
MSL_BUILTIN_SHUFFLE(simd_shuffle_rotate_down) MSL_BUILTIN_SHUFFLE(simd_shuffle_rotate_up)
MSL_BUILTIN_FILL(simd_shuffle_and_fill_up) MSL_BUILTIN_FILL(simd_shuffle_and_fill_down)
float __metal_simd_xor(float);   // MLX names it; there is no such operation, and a kernel that calls it does not link
#undef MSL_BUILTIN_SIMD
#undef MSL_BUILTIN_SHUFFLE
#undef MSL_BUILTIN_FILL
MSL_INLINE ushort __metal_get_simdgroup_size(ushort) { return 32; }
MSL_INLINE ushort __metal_get_thread_index_in_simdgroup(ushort) { return (ushort)metal::detail::lane(); }
