// Clang's builtins for whole vectors, for msl/math.h and msl/integer.h: component by component.
#pragma once
#include "builtins.h"

namespace metal::detail {
template <class V, class A> MSL_INLINE constexpr V converted(A a) { return V(a); }
}  // namespace metal::detail

#define MSL_ELEMENTWISE_1(name, expression)                                            \
  template <class T> MSL_INLINE constexpr T __builtin_elementwise_##name(T x) {        \
    return metal::detail::each<T>([](auto v) { return expression; }, x);               \
  }
#define MSL_ELEMENTWISE_2(name, expression)                                            \
  template <class T> MSL_INLINE constexpr T __builtin_elementwise_##name(T x, T y) {   \
    return metal::detail::each<T>([](auto a, auto b) { return expression; }, x, y);    \
  }
namespace metal::detail {
template <class T> MSL_INLINE T absolute(T v) {
  if constexpr (integral<T>) return v < 0 ? (T)-v : v;
  else return (T)::fabsf((float)v);
}
// A NaN loses to a number.
template <class T> MSL_INLINE T larger(T a, T b) {
  if constexpr (integral<T>) return a < b ? b : a;
  else return (T)::fmaxf((float)a, (float)b);
}
template <class T> MSL_INLINE T smaller(T a, T b) {
  if constexpr (integral<T>) return b < a ? b : a;
  else return (T)::fminf((float)a, (float)b);
}
template <class T> MSL_INLINE T reversed(T v) {
  if constexpr (sizeof(T) == 8) return (T)__brevll((ulong)v);
  else return (T)(__brev((uint)v) >> (32 - 8 * sizeof(T)));
}
template <class T> MSL_INLINE T bit_count(T v) {
  if constexpr (sizeof(T) == 8) return (T)__popcll((ulong)v);
  else return (T)__popc((uint)v & (~0u >> (32 - 8 * sizeof(T))));
}
template <class T> MSL_INLINE T clamped(__int128 v) {
  constexpr int digits = 8 * sizeof(T) - is_signed_int<T>;
  constexpr __int128 top = ((__int128)1 << digits) - 1, bottom = is_signed_int<T> ? -top - 1 : 0;
  return (T)(v > top ? top : v < bottom ? bottom : v);
}
}  // namespace metal::detail
MSL_ELEMENTWISE_1(floor, ::floorf((float)v)) MSL_ELEMENTWISE_1(ceil, ::ceilf((float)v))
MSL_ELEMENTWISE_1(trunc, ::truncf((float)v)) MSL_ELEMENTWISE_1(roundeven, ::rintf((float)v))
MSL_ELEMENTWISE_1(round, ::roundf((float)v)) MSL_ELEMENTWISE_1(abs, metal::detail::absolute(v))
MSL_ELEMENTWISE_1(sqrt, ::sqrtf(v)) MSL_ELEMENTWISE_1(exp, ::expf(v)) MSL_ELEMENTWISE_1(exp2, ::exp2f(v))
MSL_ELEMENTWISE_1(log, ::logf(v)) MSL_ELEMENTWISE_1(log2, ::log2f(v)) MSL_ELEMENTWISE_1(log10, ::log10f(v))
MSL_ELEMENTWISE_1(sin, ::sinf(v)) MSL_ELEMENTWISE_1(cos, ::cosf(v))
MSL_ELEMENTWISE_1(popcount, metal::detail::bit_count(v)) MSL_ELEMENTWISE_1(bitreverse, metal::detail::reversed(v))
MSL_ELEMENTWISE_2(max, metal::detail::larger(a, b)) MSL_ELEMENTWISE_2(min, metal::detail::smaller(a, b))
MSL_ELEMENTWISE_2(copysign, ::copysignf((float)a, (float)b))
MSL_ELEMENTWISE_2(add_sat, metal::detail::clamped<decltype(a)>((__int128)a + b))
MSL_ELEMENTWISE_2(sub_sat, metal::detail::clamped<decltype(a)>((__int128)a - b))
#undef MSL_ELEMENTWISE_1
#undef MSL_ELEMENTWISE_2
template <class T> MSL_INLINE T __builtin_elementwise_fma(T a, T b, T c) {
  return metal::detail::each<T>([](float x, float y, float z) { return ::fmaf(x, y, z); }, a, b, c);
}
template <class T> MSL_INLINE int __builtin_clzg(T v) {
  return sizeof(T) == 8 ? __clzll((long long)v) : __clz((int)v) - 32 + 8 * (int)sizeof(T);
}
template <class T> MSL_INLINE int __builtin_ctzg(T v) { return __ffsll((long long)v) - 1; }
