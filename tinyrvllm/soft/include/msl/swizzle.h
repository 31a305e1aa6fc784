// Swizzles of the vectors that are classes here (bool vectors, packed_float3 and its kin): v.xz, v.rgb = w. clang's own
// vectors have theirs. Each is a property: clang turns its reads and writes into calls of get_ and put_ (-fdeclspec).
#pragma once
#include "types.h"

namespace metal::detail {
template <int... I> constexpr bool distinct() {
  uint seen = 0;
  return (((seen >> I & 1) == 0 && (seen |= 1u << I)) && ...);
}
template <class V, int... I, class P> MSL_INLINE constexpr V gather(const P &p) {
  V v;
  int k = 0;
  ((v[k++] = p[I]), ...);
  return v;
}
template <int... I, class P, class V> MSL_INLINE constexpr void scatter(P &p, V v) {
  static_assert(distinct<I...>(), "a component is assigned twice");
  int k = 0;
  ((p[I] = v[k++]), ...);
}
}  // namespace metal::detail

// V(N) is the vector type of N components; the name's components have the indices that follow.
#define MSL_SWIZZLE(V, N, name, colours, ...)                                                                \
  template <class A = V(N)> A get_##name() const { return metal::detail::gather<A, __VA_ARGS__>(*this); }    \
  template <class A, class B = V(N)> void put_##name(A a) { metal::detail::scatter<__VA_ARGS__>(*this, (B)a); } \
  __declspec(property(get = get_##name, put = put_##name)) V(N) name;                                        \
  __declspec(property(get = get_##name, put = put_##name)) V(N) colours;
// M for the name with each of 2, 3 or 4 components behind it. A macro does not run inside itself, hence three of each.
#define MSL_SECOND_2(M, n, V, s, c, ...) M(n, V, s##x, c##r, __VA_ARGS__, 0) M(n, V, s##y, c##g, __VA_ARGS__, 1)
#define MSL_SECOND_3(M, n, V, s, c, ...) MSL_SECOND_2(M, n, V, s, c, __VA_ARGS__) M(n, V, s##z, c##b, __VA_ARGS__, 2)
#define MSL_SECOND_4(M, n, V, s, c, ...) MSL_SECOND_3(M, n, V, s, c, __VA_ARGS__) M(n, V, s##w, c##a, __VA_ARGS__, 3)
#define MSL_THIRD_2(M, n, V, s, c, ...) M(n, V, s##x, c##r, __VA_ARGS__, 0) M(n, V, s##y, c##g, __VA_ARGS__, 1)
#define MSL_THIRD_3(M, n, V, s, c, ...) MSL_THIRD_2(M, n, V, s, c, __VA_ARGS__) M(n, V, s##z, c##b, __VA_ARGS__, 2)
#define MSL_THIRD_4(M, n, V, s, c, ...) MSL_THIRD_3(M, n, V, s, c, __VA_ARGS__) M(n, V, s##w, c##a, __VA_ARGS__, 3)
#define MSL_FOURTH_2(M, n, V, s, c, ...) M(n, V, s##x, c##r, __VA_ARGS__, 0) M(n, V, s##y, c##g, __VA_ARGS__, 1)
#define MSL_FOURTH_3(M, n, V, s, c, ...) MSL_FOURTH_2(M, n, V, s, c, __VA_ARGS__) M(n, V, s##z, c##b, __VA_ARGS__, 2)
#define MSL_FOURTH_4(M, n, V, s, c, ...) MSL_FOURTH_3(M, n, V, s, c, __VA_ARGS__) M(n, V, s##w, c##a, __VA_ARGS__, 3)
#define MSL_OF_2(n, V, s, c, ...) \
  MSL_SWIZZLE(V, 2, s, c, __VA_ARGS__) MSL_THIRD_##n(MSL_OF_3, n, V, s, c, __VA_ARGS__)
#define MSL_OF_3(n, V, s, c, ...) \
  MSL_SWIZZLE(V, 3, s, c, __VA_ARGS__) MSL_FOURTH_##n(MSL_OF_4, n, V, s, c, __VA_ARGS__)
#define MSL_OF_4(n, V, s, c, ...) MSL_SWIZZLE(V, 4, s, c, __VA_ARGS__)
#define MSL_SWIZZLES_2(n, V) MSL_SECOND_##n(MSL_OF_2, n, V, x, r, 0) MSL_SECOND_##n(MSL_OF_2, n, V, y, g, 1)
#define MSL_SWIZZLES_3(n, V) MSL_SWIZZLES_2(n, V) MSL_SECOND_##n(MSL_OF_2, n, V, z, b, 2)
#define MSL_SWIZZLES_4(n, V) MSL_SWIZZLES_3(n, V) MSL_SECOND_##n(MSL_OF_2, n, V, w, a, 3)
// All swizzles of a class with n components.
#define MSL_SWIZZLES(n, V) MSL_SWIZZLES_##n(n, V)
