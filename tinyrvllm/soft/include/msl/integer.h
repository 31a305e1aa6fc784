// metal_integer: functions of integers, scalars and vectors (MSL specification, 6.4).
#pragma once
#include "type_traits.h"

namespace metal {
namespace detail {
template <class T>
concept Int = is_int<elem<T>>;
template <class T>
concept IntVector = Int<T> && (size<T> > 1);
template <class T> using bits_t = with_elem<T, __make_unsigned(elem<T>)>;
template <class T> MSL_INLINE bits_t<T> bits(T x) { return __builtin_bit_cast(bits_t<T>, x); }
// Twice the width: sums and products of two components fit.
template <class T> struct twice {
  typedef __int128 type;
};
template <class T>
  requires(sizeof(T) < 8)
struct twice<T> {
  typedef long type;
};
template <> struct twice<ulong> {
  typedef unsigned __int128 type;
};
template <class T> using twice_t = typename twice<T>::type;
template <class T> MSL_INLINE T saturated(twice_t<T> v) {
  return v > int_limits<T>::max()   ? int_limits<T>::max()
         : v < int_limits<T>::min() ? int_limits<T>::min()
                                    : (T)v;
}
}  // namespace detail

template <detail::Int T> MSL_INLINE T abs(T x) { return __builtin_elementwise_abs(x); }
template <detail::Int T>
  requires(!__is_signed(detail::elem<T>))
MSL_INLINE T abs(T x) {
  return x;
}
template <detail::Int T> MSL_INLINE T max(T a, T b) { return __builtin_elementwise_max(a, b); }
template <detail::Int T> MSL_INLINE T min(T a, T b) { return __builtin_elementwise_min(a, b); }
MSL_INLINE int max(bool a, bool b) { return a | b; }
MSL_INLINE int min(bool a, bool b) { return a & b; }
template <detail::IntVector T> MSL_INLINE T max(T a, detail::elem<T> b) { return max(a, (T)b); }
template <detail::IntVector T> MSL_INLINE T min(T a, detail::elem<T> b) { return min(a, (T)b); }
template <detail::IntVector T> MSL_INLINE T max(detail::elem<T> a, T b) { return max((T)a, b); }
template <detail::IntVector T> MSL_INLINE T min(detail::elem<T> a, T b) { return min((T)a, b); }
template <detail::Int T> MSL_INLINE T max3(T a, T b, T c) { return max(max(a, b), c); }
template <detail::Int T> MSL_INLINE T min3(T a, T b, T c) { return min(min(a, b), c); }
template <detail::Int T> MSL_INLINE T median3(T a, T b, T c) {
  return max(min(a, b), min(max(a, b), c));
}
template <detail::Int T> MSL_INLINE T clamp(T x, T low, T high) { return min(max(x, low), high); }
template <detail::IntVector T> MSL_INLINE T clamp(T x, detail::elem<T> low, detail::elem<T> high) {
  return min(max(x, (T)low), (T)high);
}
template <detail::Int T> MSL_INLINE auto absdiff(T a, T b) {
  return detail::bits(a > b ? a : b) - detail::bits(a > b ? b : a);
}

template <detail::Int T> MSL_INLINE T popcount(T x) { return __builtin_elementwise_popcount(x); }
template <detail::Int T> MSL_INLINE T clz(T x) {
  return detail::each<T>([](auto v) { return v ? __builtin_clzg(v) : (int)sizeof(v) * 8; },
                         detail::bits(x));
}
template <detail::Int T> MSL_INLINE T ctz(T x) {
  return detail::each<T>([](auto v) { return v ? __builtin_ctzg(v) : (int)sizeof(v) * 8; },
                         detail::bits(x));
}
template <detail::Int T> MSL_INLINE T reverse_bits(T x) {
  return __builtin_elementwise_bitreverse(x);
}
template <detail::Int T> MSL_INLINE T rotate(T x, T n) {
  return detail::each<T>(
      [](auto v, auto k) {
        typedef decltype(v) U;
        constexpr int width = sizeof(U) * 8;
        return (U)(v << (k & (width - 1)) | v >> (-k & (width - 1)));
      },
      detail::bits(x), detail::bits(n));
}
// `bits` bits from bit `offset` on, sign-extended for signed types.
template <detail::Int T> MSL_INLINE T extract_bits(T x, uint offset, uint bits) {
  constexpr uint width = sizeof(detail::elem<T>) * 8;
  if (bits == 0) return (T)0;
  return detail::each<T>(
      [=](auto v) {
        return (detail::elem<T>)((detail::elem<T>)(v << (width - bits - offset)) >> (width - bits));
      },
      x);
}
template <detail::Int T> MSL_INLINE T insert_bits(T base, T insert, uint offset, uint bits) {
  typedef detail::elem<detail::bits_t<T>> U;
  if (bits == 0) return base;
  U mask = (U)((U)((U)~U(0) >> (sizeof(U) * 8 - bits)) << offset);
  return detail::each<T>(
      [=](auto b, auto v) { return (detail::elem<T>)((b & ~mask) | ((U)((U)v << offset) & mask)); },
      base, insert);
}

template <detail::Int T> MSL_INLINE T addsat(T a, T b) {
  return __builtin_elementwise_add_sat(a, b);
}
template <detail::Int T> MSL_INLINE T subsat(T a, T b) {
  return __builtin_elementwise_sub_sat(a, b);
}
template <detail::Int T> MSL_INLINE T hadd(T a, T b) {
  return (a >> 1) + (b >> 1) + (a & b & 1);
}  // (a + b) >> 1
template <detail::Int T> MSL_INLINE T rhadd(T a, T b) {
  return (a >> 1) + (b >> 1) + ((a | b) & 1);
}  // (a + b + 1) >> 1
template <detail::Int T> MSL_INLINE T mulhi(T a, T b) {
  return detail::each<T>(
      [](auto x, auto y) { return (detail::twice_t<decltype(x)>)x * y >> sizeof(x) * 8; }, a, b);
}
template <detail::Int T> MSL_INLINE T madhi(T a, T b, T c) { return mulhi(a, b) + c; }
template <detail::Int T> MSL_INLINE T madsat(T a, T b, T c) {
  return detail::each<T>(
      [](auto x, auto y, auto z) {
        typedef decltype(x) E;
        return detail::saturated<E>((detail::twice_t<E>)x * y + z);
      },
      a, b, c);
}
// 24-bit arithmetic: the low 24 bits of the operands, sign-extended for int.
template <detail::Int T> MSL_INLINE T low24(T x) { return extract_bits(x, 0, 24); }
template <detail::Int T> MSL_INLINE T mul24(T a, T b) { return low24(a) * low24(b); }
template <detail::Int T> MSL_INLINE T mad24(T a, T b, T c) { return mul24(a, b) + c; }
}  // namespace metal
