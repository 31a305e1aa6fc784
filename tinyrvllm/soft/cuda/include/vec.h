// Metal's words, scalars and vectors for NVRTC, which has no vector extension: vectors are classes. Included by
// msl/types.h in the place of clang's vectors.
//
// Swizzles come from the front end (soft/cuda/spelling.py): v.yx is v.get<1, 0>(), and v.yx = w is v.set<1, 0>() = w.
// CUDA has names of its own for float4 and its kin: ours are called msl_float4, and a macro makes float4 of them.
#pragma once
#include "half.h"

#define device
#define constant const
#define threadgroup
#define thread
#define kernel
#define coherent(scope)
#define METAL_FUNC __forceinline__

typedef signed char int8_t;
typedef uchar uint8_t;
typedef short int16_t;
typedef ushort uint16_t;
typedef int int32_t;
typedef uint uint32_t;
typedef long long int64_t;
typedef ulong uint64_t;
typedef decltype((char *)0 - (char *)0) ptrdiff_t;
typedef ptrdiff_t intptr_t;
typedef size_t uintptr_t;

namespace metal {
template <class T, int N> struct vec;
template <class V, int... I> struct swizzled;
namespace detail {
template <class T> inline constexpr bool is_scalar = __is_arithmetic(T) || is_small<T>;
// Components that a vector may not have: then another one, which nobody looks at.
template <class V> MSL_INLINE constexpr auto &third(V &v) {
  if constexpr (V::n > 2) return v.z;
  else return v.x;
}
template <class V> MSL_INLINE constexpr auto &fourth(V &v) {
  if constexpr (V::n > 3) return v.w;
  else return v.x;
}
// Four bytes become floats as the last bits of 2^23 to 2^23 + 255, from which 2^23 is taken; signed ones are made
// unsigned first. Exact, and faster on an H200 than the instruction for it (docs/cuda.md).
template <class To, class From>
inline constexpr bool bytes_to_floats = sizeof(From) == 4 && sizeof(To) == 16 && !__is_integral(decltype(To::x));
template <class V> MSL_INLINE void widen(bool is_signed, uint word, V &v) {
  if (is_signed) word ^= 0x80808080u;
  float zero = is_signed ? 8388736.0f : 8388608.0f;
  v.x = __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7650)) - zero;
  v.y = __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7651)) - zero;
  v.z = __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7652)) - zero;
  v.w = __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7653)) - zero;
}
}  // namespace detail

// Written out by component: no index, so that a vector stays in registers.
#define MSL_EACH(r, expression_x, expression_y, expression_z, expression_w) \
  r.x = (expression_x);                                                     \
  r.y = (expression_y);                                                     \
  if constexpr (n > 2) detail::third(r) = (expression_z);                   \
  if constexpr (n > 3) detail::fourth(r) = (expression_w);
#define MSL_ARITHMETIC(OP)                                                                      \
  friend constexpr vec operator OP(vec a, vec b) {                                              \
    MSL_EACH(a, (T)(a.x OP b.x), (T)(a.y OP b.y), (T)(detail::third(a) OP detail::third(b)),    \
             (T)(detail::fourth(a) OP detail::fourth(b)))                                       \
    return a;                                                                                   \
  }                                                                                             \
  constexpr vec &operator OP##=(vec b) { return *this = *this OP b; }
#define MSL_COMPARISON(OP)                                                                      \
  friend constexpr vec<bool, n> operator OP(vec a, vec b) {                                     \
    vec<bool, n> r;                                                                             \
    MSL_EACH(r, a.x OP b.x, a.y OP b.y, detail::third(a) OP detail::third(b),                   \
             detail::fourth(a) OP detail::fourth(b))                                            \
    return r;                                                                                   \
  }
#define MSL_UNARY(OP)                                                                           \
  constexpr vec operator OP() const {                                                           \
    vec r;                                                                                      \
    MSL_EACH(r, (T)(OP x), (T)(OP y), (T)(OP detail::third(*this)),                             \
             (T)(OP detail::fourth(*this)))                                                     \
    return r;                                                                                   \
  }
#define MSL_VECTOR_BODY                                                                              \
  vec() = default;                                                                                   \
  template <class S>                                                                                 \
    requires(detail::is_scalar<S>)                                                                   \
  constexpr vec(S s) {                                                                               \
    MSL_EACH((*this), (T)s, (T)s, (T)s, (T)s)                                                        \
  }                                                                                                  \
  template <class U> constexpr explicit vec(vec<U, n> v) {                                           \
    if constexpr (detail::bytes_to_floats<vec, vec<U, n>>)                                           \
      if (!__builtin_is_constant_evaluated()) {                                                      \
        detail::widen((U)-1 < (U)0, __builtin_bit_cast(uint, v), *this);                             \
        return;                                                                                      \
      }                                                                                              \
    MSL_EACH((*this), (T)v.x, (T)v.y, (T)detail::third(v), (T)detail::fourth(v))                     \
  }                                                                                                  \
  constexpr T &operator[](int i) { return (&x)[i]; }                                                 \
  constexpr const T &operator[](int i) const { return (&x)[i]; }                                     \
  template <int... I> constexpr vec<T, sizeof...(I)> get() const { return {(*this)[I]...}; }         \
  template <int... I> constexpr swizzled<vec, I...> set() { return {*this}; }                        \
  MSL_ARITHMETIC(+) MSL_ARITHMETIC(-) MSL_ARITHMETIC(*) MSL_ARITHMETIC(/) MSL_ARITHMETIC(%)          \
  MSL_ARITHMETIC(&) MSL_ARITHMETIC(|) MSL_ARITHMETIC(^) MSL_ARITHMETIC(<<) MSL_ARITHMETIC(>>)        \
  MSL_COMPARISON(==) MSL_COMPARISON(!=) MSL_COMPARISON(<) MSL_COMPARISON(>) MSL_COMPARISON(<=)       \
  MSL_COMPARISON(>=) MSL_COMPARISON(&&) MSL_COMPARISON(||)                                           \
  MSL_UNARY(-) MSL_UNARY(+) MSL_UNARY(~)                                                             \
  constexpr vec<bool, n> operator!() const { return *this == vec((T)0); }                            \
  constexpr vec &operator++() { return *this += vec((T)1); }                                         \
  constexpr vec &operator--() { return *this -= vec((T)1); }

template <class T> struct alignas(2 * sizeof(T)) vec<T, 2> {
  static constexpr int n = 2;
  T x, y;
  constexpr vec(T a, T b) : x(a), y(b) {}
  MSL_VECTOR_BODY
};
template <class T> struct alignas(4 * sizeof(T)) vec<T, 3> {
  static constexpr int n = 3;
  T x, y, z;
  constexpr vec(T a, T b, T c) : x(a), y(b), z(c) {}
  MSL_VECTOR_BODY
};
template <class T> struct alignas(4 * sizeof(T)) vec<T, 4> {
  static constexpr int n = 4;
  T x, y, z, w;
  constexpr vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  MSL_VECTOR_BODY
};
#undef MSL_VECTOR_BODY
#undef MSL_UNARY
#undef MSL_COMPARISON
#undef MSL_ARITHMETIC
#undef MSL_EACH

// What stands left of an assignment: v.zx = w, v.xy += w.
template <class T, int N, int... I> struct swizzled<vec<T, N>, I...> {
  typedef vec<T, sizeof...(I)> value;
  vec<T, N> &v;
  constexpr value operator=(value w) {
    int i = 0;
    ((v[I] = w[i++]), ...);
    return w;
  }
  constexpr operator value() const { return {v[I]...}; }
  constexpr value operator+=(value w) { return *this = (value)*this + w; }
  constexpr value operator-=(value w) { return *this = (value)*this - w; }
  constexpr value operator*=(value w) { return *this = (value)*this * w; }
  constexpr value operator/=(value w) { return *this = (value)*this / w; }
};

// ---- packed vectors: the alignment of one component
namespace detail {
// N components of T from memory that is aligned to T. Apple's loads take any address, NVIDIA's only multiples of their
// size: so components under 4 bytes come out of aligned words, one more than they fill. That one may lie behind the
// buffer: its allocation has 16 bytes more (soft/cuda/memory.py).
template <class T, int N> MSL_INLINE vec<T, N> load_packed(const T *p) {
  constexpr uint bytes = N * sizeof(T);
  uint address = (uint)(uintptr_t)p;
  if constexpr (sizeof(T) >= 4 && N != 3) {
    if (address % bytes == 0) return *(const vec<T, N> *)p;
  } else if constexpr (bytes == 4 || bytes == 8) {
    uint ahead = address % 4;
    const uint *from = (const uint *)((const char *)p - ahead);
    uint low = __funnelshift_r(from[0], from[1], ahead * 8);
    if constexpr (bytes == 4) return __builtin_bit_cast(vec<T, N>, low);
    else return __builtin_bit_cast(vec<T, N>, vec<uint, 2>{low, __funnelshift_r(from[1], from[2], ahead * 8)});
  }
  vec<T, N> v;
  _Pragma("unroll") for (int i = 0; i < N; i++) v[i] = p[i];
  return v;
}
}  // namespace detail
template <class T, int N> struct packed {
  typedef vec<T, N> unpacked;
  T c[N];
  packed() = default;
  constexpr packed(unpacked v) {
    for (int i = 0; i < N; i++) c[i] = v[i];
  }
  template <class S>
    requires(detail::is_scalar<S>)
  constexpr packed(S s) : packed(unpacked(s)) {}
  template <class... S>
    requires(sizeof...(S) == N && (detail::is_scalar<S> && ...))
  constexpr packed(S... s) : c{(T)s...} {}
  operator unpacked() const { return detail::load_packed<T, N>(c); }
  constexpr T &operator[](int i) { return c[i]; }
  constexpr T operator[](int i) const { return c[i]; }
  friend unpacked operator-(packed a) { return -(unpacked)a; }
};
template <class T> using packed3 = packed<T, 3>;
#define MSL_PACKED_OPERATOR(OP)                                                     \
  template <class T, int N> MSL_INLINE auto operator OP(packed<T, N> a, packed<T, N> b) { \
    return (vec<T, N>)a OP (vec<T, N>)b;                                            \
  }                                                                                 \
  template <class T, int N, class B>                                                \
    requires(!requires { typename B::unpacked; })                                   \
  MSL_INLINE auto operator OP(packed<T, N> a, B b) {                                \
    return (vec<T, N>)a OP b;                                                       \
  }                                                                                 \
  template <class T, int N, class A>                                                \
    requires(!requires { typename A::unpacked; })                                   \
  MSL_INLINE auto operator OP(A a, packed<T, N> b) {                                \
    return a OP (vec<T, N>)b;                                                       \
  }                                                                                 \
  template <class T, int N, class B>                                                \
  MSL_INLINE packed<T, N> &operator OP##=(packed<T, N> &a, B b) {                   \
    return a = packed<T, N>(a OP b);                                                \
  }
MSL_PACKED_OPERATOR(+) MSL_PACKED_OPERATOR(-) MSL_PACKED_OPERATOR(*) MSL_PACKED_OPERATOR(/)
#undef MSL_PACKED_OPERATOR
}  // namespace metal

#define MSL_VECTORS(T)                            \
  typedef metal::vec<T, 2> msl_##T##2;            \
  typedef metal::vec<T, 3> msl_##T##3;            \
  typedef metal::vec<T, 4> msl_##T##4;            \
  typedef metal::packed<T, 2> packed_##T##2;      \
  typedef metal::packed<T, 3> packed_##T##3;      \
  typedef metal::packed<T, 4> packed_##T##4;
MSL_VECTORS(float) MSL_VECTORS(half) MSL_VECTORS(bfloat) MSL_VECTORS(char) MSL_VECTORS(uchar) MSL_VECTORS(short)
MSL_VECTORS(ushort) MSL_VECTORS(int) MSL_VECTORS(uint) MSL_VECTORS(ulong) MSL_VECTORS(bool)
typedef metal::vec<long long, 2> msl_long2;
typedef metal::vec<long long, 3> msl_long3;
typedef metal::vec<long long, 4> msl_long4;
#undef MSL_VECTORS
#define float2 msl_float2
#define float3 msl_float3
#define float4 msl_float4
#define half2 msl_half2
#define half3 msl_half3
#define half4 msl_half4
#define bfloat2 msl_bfloat2
#define bfloat3 msl_bfloat3
#define bfloat4 msl_bfloat4
#define char2 msl_char2
#define char3 msl_char3
#define char4 msl_char4
#define uchar2 msl_uchar2
#define uchar3 msl_uchar3
#define uchar4 msl_uchar4
#define short2 msl_short2
#define short3 msl_short3
#define short4 msl_short4
#define ushort2 msl_ushort2
#define ushort3 msl_ushort3
#define ushort4 msl_ushort4
#define int2 msl_int2
#define int3 msl_int3
#define int4 msl_int4
#define uint2 msl_uint2
#define uint3 msl_uint3
#define uint4 msl_uint4
#define long2 msl_long2
#define long3 msl_long3
#define long4 msl_long4
#define ulong2 msl_ulong2
#define ulong3 msl_ulong3
#define ulong4 msl_ulong4
#define bool2 msl_bool2
#define bool3 msl_bool3
#define bool4 msl_bool4
