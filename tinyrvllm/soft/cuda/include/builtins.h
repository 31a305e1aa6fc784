// Clang's builtins that the shared headers of metal_stdlib are written with, said in what NVRTC has.
#pragma once
#include "runtime.h"

// ---- questions about types
namespace metal::detail {
template <class T> inline constexpr bool integral = false;
#define MSL_INTEGRAL(T) template <> inline constexpr bool integral<T> = true;
MSL_INTEGRAL(bool) MSL_INTEGRAL(char) MSL_INTEGRAL(signed char) MSL_INTEGRAL(uchar) MSL_INTEGRAL(short)
MSL_INTEGRAL(ushort) MSL_INTEGRAL(int) MSL_INTEGRAL(uint) MSL_INTEGRAL(long) MSL_INTEGRAL(unsigned long)
MSL_INTEGRAL(long long) MSL_INTEGRAL(ulong)
#undef MSL_INTEGRAL
template <class T> inline constexpr bool arithmetic = integral<T>;
template <> inline constexpr bool arithmetic<float> = true;
template <> inline constexpr bool arithmetic<double> = true;
template <class T> inline constexpr bool is_signed_int = false;
template <class T>
  requires(integral<T>)
inline constexpr bool is_signed_int<T> = (T)-1 < (T)0;
template <class T> inline constexpr bool is_unsigned_int = integral<T> && !is_signed_int<T>;
template <class T> inline constexpr bool pointer = false;
template <class T> inline constexpr bool pointer<T *> = true;
template <class T> inline constexpr bool is_void = false;
template <> inline constexpr bool is_void<void> = true;
template <class T> inline constexpr bool constant_type = false;
template <class T> inline constexpr bool constant_type<const T> = true;
template <class T> inline constexpr bool reference = false;
template <class T> inline constexpr bool reference<T &> = true;
template <class T> struct plain { typedef T type, no_const, no_volatile, no_cv, no_reference; };
template <class T> struct plain<const T> { typedef T type, no_const, no_cv; typedef const T no_volatile, no_reference; };
template <class T> struct plain<volatile T> { typedef T type, no_volatile, no_cv; typedef volatile T no_const, no_reference; };
template <class T> struct plain<T &> : plain<T> { typedef T &no_const, &no_volatile, &no_cv; typedef T no_reference; };
template <class T> struct pointed { typedef T type; };
template <class T> struct pointed<T *> { typedef T type; };
template <int BYTES, bool SIGNED> struct integer;
template <> struct integer<1, true> { typedef signed char type; };
template <> struct integer<1, false> { typedef uchar type; };
template <> struct integer<2, true> { typedef short type; };
template <> struct integer<2, false> { typedef ushort type; };
template <> struct integer<4, true> { typedef int type; };
template <> struct integer<4, false> { typedef uint type; };
template <> struct integer<8, true> { typedef long long type; };
template <> struct integer<8, false> { typedef ulong type; };
}  // namespace metal::detail
#define __is_integral(...) (metal::detail::integral<__VA_ARGS__>)
#define __is_arithmetic(...) (metal::detail::arithmetic<__VA_ARGS__>)
#define __is_signed(...) (metal::detail::is_signed_int<__VA_ARGS__>)
#define __is_unsigned(...) (metal::detail::is_unsigned_int<__VA_ARGS__>)
#define __is_pointer(...) (metal::detail::pointer<__VA_ARGS__>)
#define __is_void(...) (metal::detail::is_void<__VA_ARGS__>)
#define __is_const(...) (metal::detail::constant_type<__VA_ARGS__>)
#define __is_reference(...) (metal::detail::reference<__VA_ARGS__>)
#define __is_convertible(...) __is_convertible_to(__VA_ARGS__)
#define __remove_const(...) typename metal::detail::plain<__VA_ARGS__>::no_const
#define __remove_volatile(...) typename metal::detail::plain<__VA_ARGS__>::no_volatile
#define __remove_cv(...) typename metal::detail::plain<__VA_ARGS__>::no_cv
#define __remove_reference_t(...) typename metal::detail::plain<__VA_ARGS__>::no_reference
#define __remove_cvref(...) typename metal::detail::plain<__VA_ARGS__>::type
#define __decay(...) typename metal::detail::plain<__VA_ARGS__>::type
#define __remove_pointer(...) typename metal::detail::pointed<__VA_ARGS__>::type
#define __make_signed(...) typename metal::detail::integer<sizeof(__VA_ARGS__), true>::type
#define __make_unsigned(...) typename metal::detail::integer<sizeof(__VA_ARGS__), false>::type

// ---- functions of scalars
#define __builtin_inff() __builtin_bit_cast(float, 0x7f800000u)
#define __builtin_convertvector(x, ...) (metal::detail::converted<__VA_ARGS__>(x))
#define __builtin_nanf(text) __builtin_bit_cast(float, 0x7fc00000u)
#define MSL_CALLS(name, ours) \
  template <class... A> MSL_INLINE auto __builtin_##name(A... a) { return ::ours(a...); }
MSL_CALLS(tanf, tanf) MSL_CALLS(asinf, asinf) MSL_CALLS(acosf, acosf) MSL_CALLS(atanf, atanf)
MSL_CALLS(sinhf, sinhf) MSL_CALLS(coshf, coshf) MSL_CALLS(tanhf, tanhf) MSL_CALLS(asinhf, asinhf)
MSL_CALLS(acoshf, acoshf) MSL_CALLS(atanhf, atanhf) MSL_CALLS(atan2f, atan2f) MSL_CALLS(fmodf, fmodf)
MSL_CALLS(powf, powf) MSL_CALLS(fdimf, fdimf) MSL_CALLS(nextafterf, nextafterf) MSL_CALLS(frexpf, frexpf)
MSL_CALLS(ilogbf, ilogbf) MSL_CALLS(copysignf, copysignf) MSL_CALLS(floorf, floorf) MSL_CALLS(fminf, fminf)
MSL_CALLS(sqrtf, sqrtf) MSL_CALLS(rintf, rintf) MSL_CALLS(fmod, fmod) MSL_CALLS(rint, rint) MSL_CALLS(cos, cos)
MSL_CALLS(sin, sin) MSL_CALLS(exp2, exp2) MSL_CALLS(fabs, fabs) MSL_CALLS(fma, fma) MSL_CALLS(ldexp, ldexp)
#undef MSL_CALLS
MSL_INLINE int __builtin_ctz(uint v) { return __ffs((int)v) - 1; }
MSL_INLINE bool __builtin_isinf(float v) { return ::fabsf(v) == __builtin_inff(); }
MSL_INLINE int __builtin_signbit(float v) { return __builtin_bit_cast(uint, v) >> 31; }
