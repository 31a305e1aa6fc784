// metal_relational: tests of floats, any, all, select (MSL specification, 6.6). Results are bool or boolN.
#pragma once
#include "math.h"

namespace metal {
#define MSL_RELATIONAL(T)                                                                        \
  MSL_INLINE detail::bool_like<T> isnan(T x) { return x != x; }                                  \
  MSL_INLINE detail::bool_like<T> isinf(T x) { return fabs(x) == (T)__builtin_inff(); }          \
  MSL_INLINE detail::bool_like<T> isfinite(T x) { return fabs(x) < (T)__builtin_inff(); }        \
  MSL_INLINE detail::bool_like<T> isnormal(T x) {                                                \
    return (fabs(x) >= (T)numeric_limits<detail::elem<T>>::min()) &                              \
           (fabs(x) < (T)__builtin_inff());                                                      \
  }                                                                                              \
  MSL_INLINE detail::bool_like<T> isordered(T x, T y) { return (x == x) & (y == y); }            \
  MSL_INLINE detail::bool_like<T> isunordered(T x, T y) { return (x != x) | (y != y); }          \
  MSL_INLINE detail::bool_like<T> signbit(T x) {                                                 \
    return detail::each<detail::bool_like<T>>([](float v) { return __builtin_signbit(v) != 0; }, \
                                              x);                                                \
  }
MSL_FOR_FLOATS(MSL_RELATIONAL)
#undef MSL_RELATIONAL

// The argument may be bool, boolN, or a comparison of vectors (an integer vector in clang).
template <class C> MSL_INLINE bool any(C c) {
  detail::bool_like<C> b = c;
  if constexpr (detail::size<C> == 1) return b;
  else {
    bool r = false;
    for (int i = 0; i < detail::size<C>; i++) r |= b[i];
    return r;
  }
}
template <class C> MSL_INLINE bool all(C c) { return !any(!detail::bool_like<C>(c)); }

// c ? b : a for each component
template <class T, class C> MSL_INLINE T select(T a, T b, C c) {
  if constexpr (detail::size<T> == 1) return c ? b : a;
  else {
    detail::bool_like<T> chosen = c;
    T r;
    for (int i = 0; i < detail::size<T>; i++) r[i] = chosen[i] ? b[i] : a[i];
    return r;
  }
}
template <class T, class C>
  requires(detail::size<T> > 1)
MSL_INLINE T select(T a, detail::elem<T> b, C c) {
  return select(a, (T)b, c);
}
template <class T, class C>
  requires(detail::size<T> > 1)
MSL_INLINE T select(detail::elem<T> a, T b, C c) {
  return select((T)a, b, c);
}
}  // namespace metal
