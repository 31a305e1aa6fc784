// metal_type_traits and metal_limits: the compile-time questions that templates of kernels ask.
#pragma once
#include "bool_vector.h"

#define INFINITY __builtin_inff()
#define HUGE_VALF __builtin_inff()
#define HUGE_VALH ((half)__builtin_inff())
#define NAN __builtin_nanf("")
#define CHAR_BIT 8
#define SCHAR_MAX 127
#define SCHAR_MIN (-128)
#define UCHAR_MAX 255
#define CHAR_MAX 127
#define CHAR_MIN (-128)
#define SHRT_MAX 32767
#define SHRT_MIN (-32768)
#define USHRT_MAX 65535
#define INT_MAX 2147483647
#define INT_MIN (-2147483647 - 1)
#define UINT_MAX 4294967295u
#define LONG_MAX ((long)0x7fffffffffffffff)
#define LONG_MIN (-LONG_MAX - 1)
#define ULONG_MAX ((ulong)0xffffffffffffffff)
#define FLT_MAX 0x1.fffffep127f
#define FLT_MIN 0x1p-126f
#define FLT_EPSILON 0x1p-23f
#define FLT_DIG 6
#define FLT_MANT_DIG 24
#define FLT_RADIX 2
#define MAXFLOAT FLT_MAX
#define MAXHALF HALF_MAX
#define HALF_MAX ((half)0x1.ffcp15f)
#define HALF_MIN ((half)0x1p-14f)
#define HALF_EPSILON ((half)0x1p-10f)
// A constant of metal_math for float (_F), and for half (_H) rounded from it.
#define M_E_F 2.71828182845904523536f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LOG10E_F 0.434294481903251827651f
#define M_LN2_F 0.693147180559945309417f
#define M_LN10_F 2.30258509299404568402f
#define M_PI_F 3.14159265358979323846f
#define M_PI_2_F 1.57079632679489661923f
#define M_PI_4_F 0.785398163397448309616f
#define M_1_PI_F 0.318309886183790671538f
#define M_2_PI_F 0.636619772367581343076f
#define M_2_SQRTPI_F 1.12837916709551257390f
#define M_SQRT2_F 1.41421356237309504880f
#define M_SQRT1_2_F 0.707106781186547524401f
#define M_E_H ((half)M_E_F)
#define M_LOG2E_H ((half)M_LOG2E_F)
#define M_LN2_H ((half)M_LN2_F)
#define M_LN10_H ((half)M_LN10_F)
#define M_PI_H ((half)M_PI_F)
#define M_PI_2_H ((half)M_PI_2_F)
#define M_1_PI_H ((half)M_1_PI_F)
#define M_2_SQRTPI_H ((half)M_2_SQRTPI_F)
#define M_SQRT2_H ((half)M_SQRT2_F)
#define M_SQRT1_2_H ((half)M_SQRT1_2_F)

namespace metal {
template <class T, T V> struct integral_constant {
  static constexpr T value = V;
  typedef T value_type;
  typedef integral_constant type;
  constexpr operator T() const { return V; }
};
template <bool B> using bool_constant = integral_constant<bool, B>;
typedef bool_constant<true> true_type;
typedef bool_constant<false> false_type;

template <bool B, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool B, class T = void> using enable_if_t = typename enable_if<B, T>::type;
template <bool B, class T, class F> struct conditional { typedef T type; };
template <class T, class F> struct conditional<false, T, F> { typedef F type; };
template <bool B, class T, class F> using conditional_t = typename conditional<B, T, F>::type;
template <class T> struct type_identity { typedef T type; };
template <class T> T &&declval();

#define MSL_TYPE_FUNCTION(name, ...)                                  \
  template <class T> struct name { typedef __VA_ARGS__ type; };       \
  template <class T> using name##_t = typename name<T>::type;
MSL_TYPE_FUNCTION(remove_const, __remove_const(T))
MSL_TYPE_FUNCTION(remove_volatile, __remove_volatile(T))
MSL_TYPE_FUNCTION(remove_cv, __remove_cv(T))
MSL_TYPE_FUNCTION(remove_reference, __remove_reference_t(T))
MSL_TYPE_FUNCTION(remove_cvref, __remove_cvref(T))
MSL_TYPE_FUNCTION(remove_pointer, __remove_pointer(T))
MSL_TYPE_FUNCTION(remove_addrspace, typename detail::bare<T>::type)
MSL_TYPE_FUNCTION(decay, __decay(T))
MSL_TYPE_FUNCTION(add_const, const T)
MSL_TYPE_FUNCTION(make_signed, __make_signed(T))
MSL_TYPE_FUNCTION(make_unsigned, __make_unsigned(T))
MSL_TYPE_FUNCTION(underlying_type, __underlying_type(T))
#undef MSL_TYPE_FUNCTION

#define MSL_QUESTION(name, ...)                                       \
  template <class T> inline constexpr bool name##_v = __VA_ARGS__;    \
  template <class T> struct name : bool_constant<name##_v<T>> {};
MSL_QUESTION(is_integral, __is_integral(T))
MSL_QUESTION(is_floating_point, detail::is_float<__remove_cv(T)>)
MSL_QUESTION(is_arithmetic, is_integral_v<T> || is_floating_point_v<T>)
MSL_QUESTION(is_signed, is_floating_point_v<T> || __is_signed(T))
MSL_QUESTION(is_unsigned, __is_unsigned(T))
MSL_QUESTION(is_vector, (detail::size<T> > 1))
MSL_QUESTION(is_pointer, __is_pointer(T))
MSL_QUESTION(is_enum, __is_enum(T))
MSL_QUESTION(is_class, __is_class(T))
MSL_QUESTION(is_void, __is_void(T))
MSL_QUESTION(is_const, __is_const(T))
MSL_QUESTION(is_reference, __is_reference(T))
MSL_QUESTION(is_trivially_copyable, __is_trivially_copyable(T))
MSL_QUESTION(is_scalar, is_arithmetic_v<T> || is_pointer_v<T> || is_enum_v<T>)
#undef MSL_QUESTION
template <class... B> struct _disjunction : bool_constant<(B::value || ...)> {};     // Apple's names
template <class... B> struct _conjunction : bool_constant<(B::value && ...)> {};
template <class B> struct _negation : bool_constant<!B::value> {};
// Apple's internal question, which libraries ask too: may simd functions take T?
template <class T> struct __is_valid_simdgroup_type : bool_constant<
    (detail::is_float<detail::elem<T>> || detail::is_int<detail::elem<T>>) && sizeof(detail::elem<T>) <= 4> {};
template <class T> struct vec_elements : integral_constant<int, detail::size<T>> {};
template <class A, class B> inline constexpr bool is_same_v = detail::same<A, B>;
template <class A, class B> struct is_same : bool_constant<is_same_v<A, B>> {};
template <class A, class B> inline constexpr bool is_convertible_v = __is_convertible(A, B);
template <class A, class B> struct is_convertible : bool_constant<is_convertible_v<A, B>> {};
template <class A, class B> inline constexpr bool is_base_of_v = __is_base_of(A, B);
template <class A, class B> struct is_base_of : bool_constant<is_base_of_v<A, B>> {};
template <class T, class... A> inline constexpr bool is_constructible_v = __is_constructible(T, A...);
template <class T, class... A> struct is_constructible : bool_constant<is_constructible_v<T, A...>> {};

namespace detail {
struct no_limits { static constexpr bool is_specialized = false; };
template <class T, int DIGITS, int EXPONENT> struct float_limits {     // significand bits, largest exponent
  static constexpr bool is_specialized = true, is_signed = true, is_integer = false, has_infinity = true;
  static constexpr bool has_quiet_NaN = true, is_exact = false;
  static constexpr int digits = DIGITS, radix = 2, max_exponent = EXPONENT, min_exponent = 3 - EXPONENT;
  static constexpr int digits10 = (DIGITS - 1) * 301 / 1000;
  static constexpr T power(int e) { float r = 1; for (; e > 0; e--) r *= 2; for (; e < 0; e++) r /= 2; return (T)r; }
  static constexpr T epsilon() { return power(1 - DIGITS); }
  static constexpr T max() { return (T)((2 - (float)power(1 - DIGITS)) * (float)power(EXPONENT - 1)); }
  static constexpr T min() { return power(2 - EXPONENT); }
  static constexpr T lowest() { return -max(); }
  static constexpr T denorm_min() { return power(3 - EXPONENT - DIGITS); }
  static constexpr T infinity() { return (T)__builtin_inff(); }
  static constexpr T quiet_NaN() { return (T)__builtin_nanf(""); }
};
template <class T> struct int_limits {
  static constexpr bool is_specialized = true, is_signed = __is_signed(T), is_integer = true, has_infinity = false;
  static constexpr bool has_quiet_NaN = false, is_exact = true;
  static constexpr int digits = sizeof(T) * 8 - is_signed, radix = 2, digits10 = digits * 301 / 1000;
  static constexpr T max() { return same<T, bool> ? (T)1 : (T)(~0ull >> (64 - digits)); }
  static constexpr T min() { return is_signed ? (T)(-max() - 1) : (T)0; }
  static constexpr T lowest() { return min(); }
  static constexpr T epsilon() { return 0; }
  static constexpr T infinity() { return 0; }
  static constexpr T quiet_NaN() { return 0; }
};
template <class T> struct limits { typedef conditional_t<__is_integral(T), int_limits<T>, no_limits> type; };
template <> struct limits<float> { typedef float_limits<float, 24, 128> type; };
template <> struct limits<half> { typedef float_limits<half, 11, 16> type; };
template <> struct limits<bfloat> { typedef float_limits<bfloat, 8, 128> type; };
}  // namespace detail
template <class T> struct _numeric_limits_impl : detail::limits<T>::type {};   // Apple's name: libraries specialise it
template <class T> struct numeric_limits : _numeric_limits_impl<T> {};
template <class T> struct numeric_limits<const T> : numeric_limits<T> {};
}  // namespace metal
