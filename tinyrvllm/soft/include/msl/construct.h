// What MSL means by T(args...) and (T)x for vectors. The front end writes metal::make<float4>(...) for float4(...) and
// metal::caster<float4>()->*x for (float4)x, because in clang a cast between vectors of one size copies bits.
#pragma once
#include "bool_vector.h"
#include "packed.h"

namespace metal {
namespace detail {
template <class T> inline constexpr bool is_bool_vector = same<elem<T>, bool> && (size<T> > 1);
template <class V, class A> MSL_INLINE void put(V &r, int &i, A a) {
  if constexpr (size<A> == 1) r[i++] = (elem<V>)a;
  else
    for (int k = 0; k < size<A>; k++) r[i++] = (elem<V>)a[k];
}
template <class A> MSL_INLINE constexpr auto unpack(A a) {
  if constexpr (requires { typename A::unpacked; }) return (typename A::unpacked)a;
  else return a;
}
// A conversion of a scalar or vector, a splat, or a concatenation.
template <class V, class... A> MSL_INLINE constexpr V construct(A... a) {
  constexpr int given = (0 + ... + size<A>), wanted = size<V>;
  if constexpr ((same<V, bfloat> && ... && same<A, half>) ||
                (same<V, half> && ... && same<A, bfloat>))
    return (V)(float)(a, ...);  // clang has no conversion between these two
  else if constexpr (wanted == 1) return V(a...);
  else if constexpr (given == 0) return V{};
  else if constexpr (sizeof...(A) == 1 && given == 1) return (V)((elem<V>)(a, ...));
  else if constexpr (sizeof...(A) == 1 && given == wanted && !(is_bool_vector<A> || ...) &&
                     !is_bool_vector<V>)
    return __builtin_convertvector((a, ...), V);
  else {
    static_assert(given == wanted,
                  "a vector constructor needs as many components as the vector has");
    V r;
    int i = 0;
    (put(r, i, a), ...);
    return r;
  }
}
}  // namespace detail

template <class V, class... A> MSL_INLINE constexpr V make(A... a) {
  if constexpr (requires { typename V::unpacked; }) return make<typename V::unpacked>(a...);
  else return detail::construct<V>(detail::unpack(a)...);
}
#ifdef MSL_CUDA  // packed vectors are not copied on the way
template <class V, class T, int N> MSL_INLINE constexpr V make(const packed<T, N> &a) {
  return detail::construct<V>(detail::load_packed<T, N>(a.c));
}
#endif
template <class V> struct caster {};
template <class V, class A> MSL_INLINE constexpr V operator->*(caster<V>, A a) {
  return make<V>(a);
}

// A braced argument, f({x, y, z}): becomes what the parameter is, a vector or a struct.
template <class A, class B> struct braced2 {
  A a;
  B b;
  template <class V>
    requires(detail::size<V> == 2 || __is_class(V))
  constexpr operator V() const {
    if constexpr (detail::size<V> > 1) return make<V>(a, b);
    else return V{a, b};
  }
};
template <class A, class B, class C> struct braced3 {
  A a;
  B b;
  C c;
  template <class V>
    requires(detail::size<V> == 3 || __is_class(V))
  constexpr operator V() const {
    if constexpr (detail::size<V> > 1) return make<V>(a, b, c);
    else return V{a, b, c};
  }
};
template <class A, class B, class C, class D> struct braced4 {
  A a;
  B b;
  C c;
  D d;
  template <class V>
    requires(detail::size<V> == 4 || __is_class(V))
  constexpr operator V() const {
    if constexpr (detail::size<V> > 1) return make<V>(a, b, c, d);
    else return V{a, b, c, d};
  }
};
template <class A> MSL_INLINE constexpr A braced(A a) { return a; }
template <class A, class B> MSL_INLINE constexpr braced2<A, B> braced(A a, B b) { return {a, b}; }
template <class A, class B, class C> MSL_INLINE constexpr braced3<A, B, C> braced(A a, B b, C c) {
  return {a, b, c};
}
template <class A, class B, class C, class D>
MSL_INLINE constexpr braced4<A, B, C, D> braced(A a, B b, C c, D d) {
  return {a, b, c, d};
}

namespace detail {  // an index of a V: an object that stands for an integer becomes one where V is a vector
template <class V, class I> MSL_INLINE constexpr auto index(const I &i) {
  if constexpr (size<typename bare<V>::type> > 1 && __is_class(I)) return (int)i;
  else return i;
}
}  // namespace detail

template <class To, class From> MSL_INLINE constexpr To as_type(From f) {
  if constexpr (requires { typename From::unpacked; } && sizeof(To) != sizeof(From))
    return as_type<To>(detail::unpack(f));
  else return __builtin_bit_cast(To, f);
}
}  // namespace metal
