// packed_float3 and its kin. Packed vectors of 2 and 4 are the ordinary vectors with the alignment of one component;
// those of 3 are a class, because clang's vectors of 3 occupy 4.
#pragma once
#include "types.h"

#ifndef MSL_CUDA  // soft/cuda/include/vec.h has its own
#include "swizzle.h"

namespace metal {
#define MSL_PARTS(N) vec<T, N>
#define MSL_SAME(colour, name)                                       \
  T get_##colour() const { return name; }                            \
  void put_##colour(T v) { name = v; }                               \
  __declspec(property(get = get_##colour, put = put_##colour)) T colour;
template <class T> struct packed3 {
  typedef T unpacked __attribute__((ext_vector_type(3)));
  T x, y, z;
  MSL_SAME(r, x) MSL_SAME(g, y) MSL_SAME(b, z) MSL_SWIZZLES(3, MSL_PARTS)
  packed3() = default;
  constexpr packed3(unpacked v) : x(v.x), y(v.y), z(v.z) {}
  constexpr explicit packed3(T v) : x(v), y(v), z(v) {}
  constexpr packed3(T a, T b, T c) : x(a), y(b), z(c) {}
  constexpr operator unpacked() const { return unpacked{x, y, z}; }
  T &operator[](int i) { return (&x)[i]; }
  constexpr T operator[](int i) const { return i == 0 ? x : i == 1 ? y : z; }
  friend unpacked operator-(packed3 a) { return -(unpacked)a; }
};
#undef MSL_PARTS
#undef MSL_SAME
#define MSL_PACKED_OPERATOR(OP)                                                                         \
  template <class T> MSL_INLINE auto operator OP(packed3<T> a, packed3<T> b) {                          \
    return (typename packed3<T>::unpacked)a OP (typename packed3<T>::unpacked)b;                        \
  }                                                                                                     \
  template <class T, class B> requires(!requires { typename B::unpacked; })                             \
  MSL_INLINE auto operator OP(packed3<T> a, B b) {                                                      \
    return (typename packed3<T>::unpacked)a OP b;                                                       \
  }                                                                                                     \
  template <class T, class A> requires(!requires { typename A::unpacked; })                             \
  MSL_INLINE auto operator OP(A a, packed3<T> b) {                                                      \
    return a OP (typename packed3<T>::unpacked)b;                                                       \
  }
MSL_PACKED_OPERATOR(+) MSL_PACKED_OPERATOR(-) MSL_PACKED_OPERATOR(*) MSL_PACKED_OPERATOR(/) MSL_PACKED_OPERATOR(%)
MSL_PACKED_OPERATOR(&) MSL_PACKED_OPERATOR(|) MSL_PACKED_OPERATOR(^) MSL_PACKED_OPERATOR(<<) MSL_PACKED_OPERATOR(>>)
MSL_PACKED_OPERATOR(==) MSL_PACKED_OPERATOR(!=) MSL_PACKED_OPERATOR(<) MSL_PACKED_OPERATOR(>) MSL_PACKED_OPERATOR(<=)
MSL_PACKED_OPERATOR(>=)
#undef MSL_PACKED_OPERATOR
#define MSL_PACKED_ASSIGN(OP) \
  template <class T, class B> MSL_INLINE packed3<T> &operator OP##=(packed3<T> &a, B b) { return a = a OP b; }
MSL_PACKED_ASSIGN(+) MSL_PACKED_ASSIGN(-) MSL_PACKED_ASSIGN(*) MSL_PACKED_ASSIGN(/) MSL_PACKED_ASSIGN(%)
MSL_PACKED_ASSIGN(&) MSL_PACKED_ASSIGN(|) MSL_PACKED_ASSIGN(^) MSL_PACKED_ASSIGN(<<) MSL_PACKED_ASSIGN(>>)
#undef MSL_PACKED_ASSIGN
}  // namespace metal

#define MSL_PACKED(T)                                                                                   \
  typedef T packed_##T##2 __attribute__((ext_vector_type(2), aligned(__alignof__(T))));                 \
  typedef T packed_##T##4 __attribute__((ext_vector_type(4), aligned(__alignof__(T))));                 \
  typedef metal::packed3<T> packed_##T##3;
MSL_PACKED(float) MSL_PACKED(half) MSL_PACKED(bfloat) MSL_PACKED(char) MSL_PACKED(uchar) MSL_PACKED(short)
MSL_PACKED(ushort) MSL_PACKED(int) MSL_PACKED(uint) MSL_PACKED(long) MSL_PACKED(ulong)
#undef MSL_PACKED
#endif
