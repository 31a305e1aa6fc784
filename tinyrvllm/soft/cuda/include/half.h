// half and bfloat: NVRTC has neither _Float16 nor __bf16. Arithmetic is done in float and rounded once, which is exact
// for + - * and /: float has more than twice the bits, and two more.
#pragma once
#include "runtime.h"

namespace metal::detail {
// A float rounded to a format of EXPONENT and MANTISSA bits, ties to even; for constant expressions.
template <int EXPONENT, int MANTISSA> constexpr ushort rounded_bits(float value) {
  constexpr int bias = (1 << (EXPONENT - 1)) - 1, drop = 23 - MANTISSA;
  uint u = __builtin_bit_cast(uint, value), sign = u >> 31 << 15, magnitude = u & 0x7fffffff;
  uint infinity = ((1u << EXPONENT) - 1) << MANTISSA;
  if (magnitude > 0x7f800000) return (ushort)(sign | infinity | 1u << (MANTISSA - 1));
  int exponent = (int)(magnitude >> 23) - 127 + bias;
  uint digits = (magnitude & 0x7fffff) | (magnitude >> 23 ? 0x800000 : 0);
  int shift = exponent > 0 ? drop : drop + 1 - exponent;
  if (shift > 24) return (ushort)sign;
  uint kept = digits >> shift, rest = digits & ((1u << shift) - 1), middle = 1u << (shift - 1);
  kept += rest > middle || (rest == middle && (kept & 1));
  if (exponent > 0) kept += (uint)(exponent - 1) << MANTISSA;
  return (ushort)(sign | (kept < infinity ? kept : infinity));
}
template <int EXPONENT, int MANTISSA> constexpr float widened_bits(ushort bits) {
  constexpr int bias = (1 << (EXPONENT - 1)) - 1;
  uint sign = (uint)(bits >> 15) << 31, exponent = bits >> MANTISSA & ((1u << EXPONENT) - 1);
  uint digits = bits & ((1u << MANTISSA) - 1);
  if (exponent == (1u << EXPONENT) - 1)
    return __builtin_bit_cast(float, sign | 0x7f800000 | digits << (23 - MANTISSA));
  if (exponent == 0) {
    float v = (float)digits;
    for (int i = 0; i < bias - 1 + MANTISSA; i++) v *= 0.5f;
    return sign ? -v : v;
  }
  return __builtin_bit_cast(float, sign | (exponent + 127 - bias) << 23 | digits << (23 - MANTISSA));
}
struct HalfFormat {
  static constexpr float widen(ushort b) {
    if (__builtin_is_constant_evaluated()) return widened_bits<5, 10>(b);
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(b));
    return f;
  }
  static constexpr ushort round(float f) {
    if (__builtin_is_constant_evaluated()) return rounded_bits<5, 10>(f);
    ushort b;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(b) : "f"(f));
    return b;
  }
};
struct BfloatFormat {
  static constexpr float widen(ushort b) { return __builtin_bit_cast(float, (uint)b << 16); }
  static constexpr ushort round(float f) { return rounded_bits<8, 7>(f); }
};

template <class F> struct small_float {
  ushort bits;
  small_float() = default;
  template <class S>
    requires(__is_arithmetic(S))
  constexpr small_float(S v) : bits(F::round((float)v)) {}
  template <class G> constexpr explicit small_float(small_float<G> v) : small_float((float)v) {}
  constexpr operator float() const { return F::widen(bits); }
  constexpr small_float operator-() const {
    small_float r;
    r.bits = bits ^ 0x8000;
    return r;
  }
};
template <class T> inline constexpr bool is_small = false;
template <class F> inline constexpr bool is_small<small_float<F>> = true;
// Both of one small type, or one of them an integer; with a float the built-in operators apply.
template <class A, class B> struct small_result {};
template <class F> struct small_result<small_float<F>, small_float<F>> {
  typedef small_float<F> type;
};
template <class F, class B>
  requires(__is_integral(B))
struct small_result<small_float<F>, B> {
  typedef small_float<F> type;
};
template <class A, class F>
  requires(__is_integral(A))
struct small_result<A, small_float<F>> {
  typedef small_float<F> type;
};
#define MSL_SMALL_OPERATOR(OP)                                                            \
  template <class A, class B, class R = typename small_result<A, B>::type>                \
  MSL_INLINE constexpr R operator OP(A a, B b) {                                          \
    return R((float)a OP(float) b);                                                       \
  }                                                                                       \
  template <class F, class B>                                                             \
  MSL_INLINE constexpr small_float<F> &operator OP##=(small_float<F> &a, B b) {           \
    return a = small_float<F>(a OP b);                                                    \
  }
MSL_SMALL_OPERATOR(+) MSL_SMALL_OPERATOR(-) MSL_SMALL_OPERATOR(*) MSL_SMALL_OPERATOR(/)
#undef MSL_SMALL_OPERATOR
}  // namespace metal::detail
typedef metal::detail::small_float<metal::detail::HalfFormat> half;
typedef metal::detail::small_float<metal::detail::BfloatFormat> bfloat;
