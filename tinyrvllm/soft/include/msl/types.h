// Metal's words, scalars and vectors (MSL specification, chapter 2).
// Vectors are clang's ext_vector_type: swizzles, arithmetic and overload resolution come from the compiler,
// which is what Apple's compiler (also clang) builds on.
//
// MSL_AS: the syntax-only pass that checks address spaces. There device, constant and threadgroup are clang address
// spaces; in the code that runs they are empty words, because a CPU has one memory.
#pragma once
#include "runtime.h"

#ifdef MSL_CUDA
#include "vec.h"  // NVRTC has no vectors: classes of soft/cuda/include
#else
#ifdef MSL_AS
#define device __attribute__((address_space(1)))
#define constant const __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#else
#define device
#define constant const
#define threadgroup
#endif
#define thread
#define kernel
#define coherent(scope)  // one memory, one cache: everything is coherent
#define METAL_FUNC inline __attribute__((always_inline))

typedef signed char int8_t;
typedef uchar uint8_t;
typedef short int16_t;
typedef ushort uint16_t;
typedef int int32_t;
typedef uint uint32_t;
typedef long int64_t;
typedef ulong uint64_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
typedef __INTPTR_TYPE__ intptr_t;
typedef __UINTPTR_TYPE__ uintptr_t;
typedef _Float16 half;
typedef __bf16 bfloat;

#define MSL_VECTORS(T)                                \
  typedef T T##2 __attribute__((ext_vector_type(2))); \
  typedef T T##3 __attribute__((ext_vector_type(3))); \
  typedef T T##4 __attribute__((ext_vector_type(4)));
MSL_VECTORS(float)
MSL_VECTORS(half)
MSL_VECTORS(bfloat)
MSL_VECTORS(char)
MSL_VECTORS(uchar)
MSL_VECTORS(short)
MSL_VECTORS(ushort)
MSL_VECTORS(int)
MSL_VECTORS(uint)
MSL_VECTORS(long)
MSL_VECTORS(ulong)
#undef MSL_VECTORS
#endif

namespace metal {
using ::ptrdiff_t;
using ::size_t;

namespace detail {
template <class A, class B> inline constexpr bool same = false;
template <class A> inline constexpr bool same<A, A> = true;
}  // namespace detail

#ifndef MSL_CUDA
// A bool vector of clang's is bit-packed in memory, Metal's is not: boolN is a class (bool_vector.h), which the front
// end also puts in place of vec<bool, N>.
template <class T, int N>
  requires(!detail::same<T, bool>)
using vec = T __attribute__((ext_vector_type(N)));
#endif

namespace detail {
// Components and element type of a scalar (1), a vector or a bool vector.
template <class T> struct shape {
  static constexpr int n = 1;
  typedef T elem;
  template <class U> using with = U;
};
#ifdef MSL_CUDA
template <class T, int N> struct shape<vec<T, N>> {
  static constexpr int n = N;
  typedef T elem;
  template <class U> using with = vec<U, N>;
};
#else
template <class T, int N> struct shape<T __attribute__((ext_vector_type(N)))> {
  static constexpr int n = N;
  typedef T elem;
  template <class U> using with = U __attribute__((ext_vector_type(N)));
};
#endif
template <class T> inline constexpr int size = shape<T>::n;
template <class T> using elem = typename shape<T>::elem;
template <class T, class U> using with_elem =
    typename shape<T>::template with<U>;  // float4, int -> int4

// The type without its address space, const and volatile: what a pointer's pointee holds.
template <class T> struct bare {
  typedef T type;
};
template <class T> struct bare<const T> : bare<T> {};
template <class T> struct bare<volatile T> : bare<T> {};
template <class T> struct bare<const volatile T> : bare<T> {};
template <class T> struct bare<T &> : bare<T> {};
#ifdef MSL_AS
template <class T, int A> struct bare<__attribute__((address_space(A))) T> : bare<T> {};
template <class T, int A> struct bare<const __attribute__((address_space(A))) T> : bare<T> {};
template <class T, int A> struct bare<volatile __attribute__((address_space(A))) T> : bare<T> {};
template <class T, int A> struct bare<const volatile __attribute__((address_space(A))) T>
    : bare<T> {};
#endif
template <class P> using pointee = typename bare<decltype(*P())>::type;

template <class T> inline constexpr bool is_float =
    same<T, float> || same<T, half> || same<T, bfloat>;
template <class T> inline constexpr bool is_int = __is_integral(T) && !same<T, bool>;

// f(a[i], b[i] ...) for each component; R is the result's type
template <class R, class F, class T> MSL_INLINE constexpr R each(F f, T a) {
  if constexpr (size<T> == 1) return (R)f(a);
  else {
    R r;
    for (int i = 0; i < size<T>; i++) r[i] = f(a[i]);
    return r;
  }
}
template <class R, class F, class T> MSL_INLINE constexpr R each(F f, T a, T b) {
  if constexpr (size<T> == 1) return (R)f(a, b);
  else {
    R r;
    for (int i = 0; i < size<T>; i++) r[i] = f(a[i], b[i]);
    return r;
  }
}
template <class R, class F, class T> MSL_INLINE constexpr R each(F f, T a, T b, T c) {
  if constexpr (size<T> == 1) return (R)f(a, b, c);
  else {
    R r;
    for (int i = 0; i < size<T>; i++) r[i] = f(a[i], b[i], c[i]);
    return r;
  }
}
}  // namespace detail
}  // namespace metal
