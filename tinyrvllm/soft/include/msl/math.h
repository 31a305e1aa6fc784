// metal_math: functions of float and half, scalars and vectors (MSL specification, 6.5).
// Every function has one plain overload for each type, as in Apple's header, so that pow(x, 2) or max(v, 0.0f)
// resolve as they do there. Half is computed in float and rounded once. precise:: and fast:: are the same functions: there is no
// fast maths here. A bfloat argument converts to float, as in Metal, where these functions have no bfloat overloads.
#pragma once
#include "type_traits.h"

#define MSL_FOR_FLOATS(X) X(float) X(float2) X(float3) X(float4) X(half) X(half2) X(half3) X(half4)

namespace metal {
namespace detail {
// Half operands as float: the wider type in which a function is computed.
template <class T> using wide_t = with_elem<T, float>;
template <class T> MSL_INLINE wide_t<T> widen(T x) {
  if constexpr (size<T> == 1) return (float)x;
  else if constexpr (same<elem<T>, float>) return x;
  else return __builtin_convertvector(x, wide_t<T>);
}
template <class T> MSL_INLINE T narrow(wide_t<T> x) {
  if constexpr (size<T> == 1) return (T)x;
  else if constexpr (same<elem<T>, float>) return x;
  else return __builtin_convertvector(x, T);
}
// double -> half with one rounding: on the way, float is rounded to odd, which keeps what decides the second rounding.
MSL_INLINE half half_of(double d) {
  float f = (float)d;
  uint u = __builtin_bit_cast(uint, f);
  bool inexact = (double)f != d && d == d && !__builtin_isinf(f);
  if (inexact && !(u & 1)) u += __builtin_fabs((double)f) < __builtin_fabs(d) ? 1 : -1;
  return (half)__builtin_bit_cast(float, u);
}
template <class T> MSL_INLINE T narrowed(double d) {
  if constexpr (same<T, half>) return half_of(d);
  else return (T)d;
}
// a * b + c with one rounding. For half the product and sum are taken in double, where no case rounds twice.
template <class T> MSL_INLINE T fused(T a, T b, T c) {
  if constexpr (same<elem<T>, float>) return __builtin_elementwise_fma(a, b, c);
  else
    return each<T>([](half x, half y, half z) {
      return half_of(__builtin_fma((double)x, (double)y, (double)z));
    }, a, b, c);
}
MSL_INLINE float sin_of_half_turns(float x) {                      // sin(pi x): exact reduction to |r| <= 1/4 turns
  double r = __builtin_fmod((double)x, 2.0);
  double n = __builtin_rint(r * 2), angle = (r - n / 2) * 3.14159265358979323846;
  int q = (int)n & 3;
  double v = q & 1 ? __builtin_cos(angle) : __builtin_sin(angle);
  return (float)(q & 2 ? -v : v);
}
MSL_INLINE float cos_of_half_turns(float x) {
  double r = __builtin_fmod(__builtin_fabs((double)x), 2.0);
  double n = __builtin_rint(r * 2), angle = (r - n / 2) * 3.14159265358979323846;
  int q = (int)n & 3;
  double v = q & 1 ? -__builtin_sin(angle) : __builtin_cos(angle);
  return (float)(q & 2 ? -v : v);
}
MSL_INLINE float tan_of_half_turns(float x) { return sin_of_half_turns(x) / cos_of_half_turns(x); }
MSL_INLINE float exp10_float(float x) { return (float)__builtin_exp2((double)x * 3.32192809488736234787); }
// The largest value below 1 keeps fract() in [0, 1) for tiny negative x.
MSL_INLINE float fract_float(float x) {
  return __builtin_isinf(x) ? 0.0f : x != x ? x : __builtin_fminf(x - __builtin_floorf(x), 0x1.fffffep-1f);
}
MSL_INLINE half fract_half(half x) {
  float f = fract_float(x);
  return (half)(f > 0x1.ffcp-1f ? 0x1.ffcp-1f : f);
}
MSL_INLINE int ilogb_float(float x) {
  return x == 0 ? -2147483647 - 1 : x != x || __builtin_isinf(x) ? 2147483647 : __builtin_ilogbf(x);
}
// The neighbouring half of x in the direction of y: halves are ordered like their bit patterns.
MSL_INLINE half nextafter_half(half x, half y) {
  if (x != x || y != y) return x + y;
  if (x == y) return y;
  ushort u = __builtin_bit_cast(ushort, x);
  if (x == 0) u = y > 0 ? 0x0001 : 0x8001;
  else u = (ushort)((x < y) == (x > 0) ? u + 1 : u - 1);
  return __builtin_bit_cast(half, u);
}
}  // namespace detail

// ---- one argument ----
#define MSL_NATIVE_1(T, name, builtin) MSL_INLINE T name(T x) { return builtin(x); }
#define MSL_WIDE_1(T, name, builtin) \
  MSL_INLINE T name(T x) { return detail::narrow<T>(builtin(detail::widen(x))); }
#define MSL_SCALAR_1(T, name, builtin) \
  MSL_INLINE T name(T x) { return detail::each<T>([](float v) { return builtin(v); }, x); }
#define MSL_MATH_1(T)                                                                                      \
  MSL_NATIVE_1(T, floor, __builtin_elementwise_floor) MSL_NATIVE_1(T, ceil, __builtin_elementwise_ceil)    \
  MSL_NATIVE_1(T, trunc, __builtin_elementwise_trunc) MSL_NATIVE_1(T, rint, __builtin_elementwise_roundeven) \
  MSL_NATIVE_1(T, round, __builtin_elementwise_round) MSL_NATIVE_1(T, fabs, __builtin_elementwise_abs)     \
  MSL_NATIVE_1(T, abs, __builtin_elementwise_abs)                                                          \
  MSL_WIDE_1(T, sqrt, __builtin_elementwise_sqrt) MSL_WIDE_1(T, exp, __builtin_elementwise_exp)            \
  MSL_WIDE_1(T, exp2, __builtin_elementwise_exp2) MSL_WIDE_1(T, log, __builtin_elementwise_log)            \
  MSL_WIDE_1(T, log2, __builtin_elementwise_log2) MSL_WIDE_1(T, log10, __builtin_elementwise_log10)        \
  MSL_WIDE_1(T, sin, __builtin_elementwise_sin) MSL_WIDE_1(T, cos, __builtin_elementwise_cos)              \
  MSL_SCALAR_1(T, tan, __builtin_tanf) MSL_SCALAR_1(T, asin, __builtin_asinf)                              \
  MSL_SCALAR_1(T, acos, __builtin_acosf) MSL_SCALAR_1(T, atan, __builtin_atanf)                            \
  MSL_SCALAR_1(T, sinh, __builtin_sinhf) MSL_SCALAR_1(T, cosh, __builtin_coshf)                            \
  MSL_SCALAR_1(T, tanh, __builtin_tanhf) MSL_SCALAR_1(T, asinh, __builtin_asinhf)                          \
  MSL_SCALAR_1(T, acosh, __builtin_acoshf) MSL_SCALAR_1(T, atanh, __builtin_atanhf)                        \
  MSL_SCALAR_1(T, sinpi, detail::sin_of_half_turns) MSL_SCALAR_1(T, cospi, detail::cos_of_half_turns)      \
  MSL_SCALAR_1(T, tanpi, detail::tan_of_half_turns) MSL_SCALAR_1(T, exp10, detail::exp10_float)            \
  MSL_INLINE T rsqrt(T x) { return detail::narrow<T>(1 / __builtin_elementwise_sqrt(detail::widen(x))); }  \
  MSL_INLINE T fract(T x) {                                                                                \
    if constexpr (detail::same<detail::elem<T>, half>) return detail::each<T>(detail::fract_half, x);      \
    else return detail::each<T>(detail::fract_float, x);                                                   \
  }                                                                                                        \
  MSL_INLINE auto ilogb(T x) { return detail::each<detail::with_elem<T, int>>(detail::ilogb_float, x); }
MSL_FOR_FLOATS(MSL_MATH_1)

// ---- two and three arguments ----
#define MSL_SCALAR_2(T, name, builtin) \
  MSL_INLINE T name(T x, T y) { return detail::each<T>([](float a, float b) { return builtin(a, b); }, x, y); }
#define MSL_MATH_2(T)                                                                                      \
  MSL_SCALAR_2(T, atan2, __builtin_atan2f) MSL_SCALAR_2(T, fmod, __builtin_fmodf)                          \
  MSL_SCALAR_2(T, pow, __builtin_powf) MSL_SCALAR_2(T, powr, __builtin_powf)                               \
  MSL_SCALAR_2(T, fdim, __builtin_fdimf)                                                                   \
  MSL_INLINE T divide(T x, T y) { return x / y; }                                                          \
  MSL_INLINE T copysign(T x, T y) { return __builtin_elementwise_copysign(x, y); }                         \
  MSL_INLINE T fmax(T x, T y) { return __builtin_elementwise_max(x, y); }   /* a NaN loses to a number */  \
  MSL_INLINE T fmin(T x, T y) { return __builtin_elementwise_min(x, y); }                                  \
  MSL_INLINE T max(T x, T y) { return __builtin_elementwise_max(x, y); }                                   \
  MSL_INLINE T min(T x, T y) { return __builtin_elementwise_min(x, y); }                                   \
  MSL_INLINE T nextafter(T x, T y) {                                                                       \
    if constexpr (detail::same<detail::elem<T>, half>) return detail::each<T>(detail::nextafter_half, x, y); \
    else return detail::each<T>([](float a, float b) { return __builtin_nextafterf(a, b); }, x, y);        \
  }                                                                                                        \
  MSL_INLINE T fma(T a, T b, T c) { return detail::fused(a, b, c); }                                       \
  MSL_INLINE T mad(T a, T b, T c) { return a * b + c; }                                                    \
  MSL_INLINE T max3(T a, T b, T c) { return max(max(a, b), c); }                                           \
  MSL_INLINE T min3(T a, T b, T c) { return min(min(a, b), c); }                                           \
  MSL_INLINE T median3(T a, T b, T c) { return max(min(a, b), min(max(a, b), c)); }                        \
  MSL_INLINE T fmax3(T a, T b, T c) { return max3(a, b, c); }                                              \
  MSL_INLINE T fmin3(T a, T b, T c) { return min3(a, b, c); }                                              \
  MSL_INLINE T fmedian3(T a, T b, T c) { return median3(a, b, c); }
MSL_FOR_FLOATS(MSL_MATH_2)

// ---- with an exponent or a second result ----
namespace detail {
template <class T> MSL_INLINE T frexp(T x, with_elem<T, int> &e) {
  if constexpr (size<T> == 1) return (T)__builtin_frexpf((float)x, &e);
  else {
    T r;
    for (int i = 0; i < size<T>; i++) { int k; r[i] = (elem<T>)__builtin_frexpf((float)x[i], &k); e[i] = k; }
    return r;
  }
}
template <class T> MSL_INLINE T ldexp(T x, with_elem<T, int> e) {
  if constexpr (size<T> == 1) return narrowed<T>(__builtin_ldexp((double)x, e));   // one rounding, at the end
  else {
    T r;
    for (int i = 0; i < size<T>; i++) r[i] = narrowed<elem<T>>(__builtin_ldexp((double)x[i], e[i]));
    return r;
  }
}
template <class T> MSL_INLINE T fraction(T x, T whole) {                     // modf: infinity has fraction 0
  return each<T>([](float a, float w) { return __builtin_copysignf(a == w ? 0.0f : a - w, a); }, x, whole);
}
}  // namespace detail
#define MSL_MATH_PARTS(T)                                                                                  \
  MSL_INLINE T ldexp(T x, detail::with_elem<T, int> e) { return detail::ldexp(x, e); }                     \
  MSL_INLINE T frexp(T x, thread detail::with_elem<T, int> &e) { return detail::frexp(x, e); }             \
  MSL_INLINE T modf(T x, thread T &whole) { whole = trunc(x); return detail::fraction(x, whole); }         \
  MSL_INLINE T sincos(T x, thread T &cosine) { cosine = cos(x); return sin(x); }
MSL_FOR_FLOATS(MSL_MATH_PARTS)

// ---- common functions (6.3) ----
#define MSL_COMMON(T)                                                                                      \
  MSL_INLINE T clamp(T x, T low, T high) { return min(max(x, low), high); }                                \
  MSL_INLINE T saturate(T x) { return clamp(x, (T)0, (T)1); }                                              \
  MSL_INLINE T mix(T a, T b, T t) { return a + (b - a) * t; }                                              \
  MSL_INLINE T step(T edge, T x) {                                                                         \
    return detail::each<T>([](auto e, auto v) { return v < e ? 0.0f : 1.0f; }, edge, x);                   \
  }                                                                                                        \
  MSL_INLINE T smoothstep(T low, T high, T x) {                                                            \
    T t = clamp((x - low) / (high - low), (T)0, (T)1);                                                     \
    return t * t * (3 - 2 * t);                                                                            \
  }                                                                                                        \
  MSL_INLINE T sign(T x) {                                              /* NaN gives 0; -0 stays -0 */     \
    return detail::each<T>([](auto v) {                                                                    \
      return v > 0 ? 1.0f : v < 0 ? -1.0f : v == 0 ? (float)v : 0.0f;                                      \
    }, x);                                                                                                 \
  }
MSL_FOR_FLOATS(MSL_COMMON)

// precise:: and fast:: name the same functions.
#define MSL_NAMES(X)                                                                                       \
  X(acos) X(acosh) X(asin) X(asinh) X(atan) X(atan2) X(atanh) X(ceil) X(clamp) X(copysign) X(cos) X(cosh)  \
  X(cospi) X(divide) X(exp) X(exp10) X(exp2) X(abs) X(fabs) X(fdim) X(floor) X(fma) X(fmax) X(fmax3)       \
  X(fmedian3) X(fmin) X(fmin3) X(fmod) X(fract) X(frexp) X(ilogb) X(ldexp) X(log) X(log10) X(log2) X(max)  \
  X(max3) X(median3) X(min) X(min3) X(mix) X(modf) X(nextafter) X(pow) X(powr) X(rint) X(round) X(rsqrt)   \
  X(saturate) X(sign) X(sin) X(sincos) X(sinh) X(sinpi) X(smoothstep) X(sqrt) X(step) X(tan) X(tanh)       \
  X(tanpi) X(trunc)
#define MSL_USING(name) using metal::name;
namespace precise { MSL_NAMES(MSL_USING) }
namespace fast { MSL_NAMES(MSL_USING) }
#undef MSL_USING
#undef MSL_NAMES
}  // namespace metal
