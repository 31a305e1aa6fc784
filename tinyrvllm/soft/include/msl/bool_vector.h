// bool2, bool3, bool4: one byte a component as in Metal (bool3 occupies four). A comparison of vectors, which
// clang gives as an integer vector of 0 and -1, converts to them.
#pragma once
#include "types.h"

#ifdef MSL_CUDA
namespace metal {  // vec<bool, N> is a class like the others, and comparisons give it
namespace detail {
template <class T> using bool_like = with_elem<T, bool>;
}
template <class T, int N> using any_vec = vec<T, N>;
template <class A> MSL_INLINE constexpr A compared(A a) { return a; }
}  // namespace metal
#else
#include "swizzle.h"
namespace metal::detail {
template <int N> struct bools { typedef bool type; };
template <class T> using bool_like = typename bools<size<T>>::type;   // float3 -> bool3, float -> bool
}  // namespace metal::detail

#define MSL_BOOL_OPERATOR(N, OP)                                                                       \
  friend bool##N operator OP(bool##N a, bool##N b) {                                                   \
    for (int i = 0; i < N; i++) a.c[i] = a.c[i] OP b.c[i];                                             \
    return a;                                                                                          \
  }
#define MSL_BOOLS(N) bool##N
#define MSL_BOOL_VECTOR(N, COLOURS, ...)                                                                        \
  struct bool##N;                                                                                      \
  namespace metal::detail {                                                                            \
  template <> struct shape<bool##N> {                                                                  \
    static constexpr int n = N;                                                                        \
    typedef bool elem;                                                                                 \
    template <class U> using with = U __attribute__((ext_vector_type(N)));                             \
  };                                                                                                   \
  template <> struct bools<N> { typedef bool##N type; };                                               \
  }                                                                                                    \
  struct bool##N {                                                                                     \
    union {                                                                                            \
      bool c[N == 3 ? 4 : N];                                                                          \
      struct { bool __VA_ARGS__; };                                                                    \
      struct { bool COLOURS; };                                                                        \
    };                                                                                                 \
    bool##N() = default;                                                                               \
    bool##N(bool v) { for (int i = 0; i < N; i++) c[i] = v; }                                          \
    template <class... B> requires(sizeof...(B) == N) bool##N(B... v) : c{(bool)v...} {}               \
    template <class T> requires(metal::detail::size<T> == N)                                           \
    explicit(!metal::detail::is_int<metal::detail::elem<T>>) bool##N(T v) {                            \
      for (int i = 0; i < N; i++) c[i] = v[i] != 0;                                                    \
    }                                                                                                  \
    bool &operator[](int i) { return c[i]; }                                                           \
    bool operator[](int i) const { return c[i]; }                                                      \
    MSL_BOOL_OPERATOR(N, &&) MSL_BOOL_OPERATOR(N, ||) MSL_BOOL_OPERATOR(N, &) MSL_BOOL_OPERATOR(N, |)  \
    MSL_BOOL_OPERATOR(N, ^) MSL_BOOL_OPERATOR(N, ==) MSL_BOOL_OPERATOR(N, !=)                          \
    MSL_SWIZZLES(N, MSL_BOOLS)                                                                         \
    bool##N operator!() const { return *this == bool##N(false); }                                      \
  };
struct bool2;
struct bool3;
struct bool4;
#define MSL_RG r, g
#define MSL_RGB r, g, b
#define MSL_RGBA r, g, b, a
MSL_BOOL_VECTOR(2, MSL_RG, x, y)
MSL_BOOL_VECTOR(3, MSL_RGB, x, y, z)
MSL_BOOL_VECTOR(4, MSL_RGBA, x, y, z, w)
#undef MSL_RG
#undef MSL_RGB
#undef MSL_RGBA
#undef MSL_BOOLS
#undef MSL_BOOL_VECTOR
#undef MSL_BOOL_OPERATOR

namespace metal {
namespace detail {
template <class T, int N> struct vec_of { typedef T type __attribute__((ext_vector_type(N))); };
template <> struct vec_of<bool, 2> { typedef bool2 type; };
template <> struct vec_of<bool, 3> { typedef bool3 type; };
template <> struct vec_of<bool, 4> { typedef bool4 type; };
}  // namespace detail
// vec<T, N> where T may be bool: what the front end puts into typedefs. A function template cannot deduce T from it.
template <class T, int N> using any_vec = typename detail::vec_of<T, N>::type;

// What a comparison gives in Metal (msl/comparisons.py): clang's integer vectors of 0 and -1 become bool vectors.
MSL_INLINE constexpr bool compared(bool b) { return b; }
template <class A> MSL_INLINE constexpr auto compared(A a) {
  if constexpr (detail::size<A> > 1 && detail::is_int<detail::elem<A>>) return (detail::bool_like<A>)a;
  else return a;
}
}  // namespace metal
#endif
