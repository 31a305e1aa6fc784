// metal_quadgroup: the same operations among 4 neighbouring lanes (MSL specification, 6.10). They use the simdgroup's
// rendezvous: the quads of a simdgroup that are at one place in the source are served together.
#pragma once
#include "simd_ops.h"

namespace metal {
namespace detail {
template <class T, class F> struct QuadReduce {
  typedef T In, Out;
  static constexpr bool one = false;
  static void run(const T *in, T *out, uint mask) {
    for (uint q = 0; q < 32; q += 4) {
      T t;
      bool any = false;
      for (uint l = q; l < q + 4; l++)
        if (mask >> l & 1) {
          t = any ? F::f(t, in[l]) : in[l];
          any = true;
        }
      for (uint l = q; any && l < q + 4; l++) out[l] = t;
    }
  }
};
template <class T, class F, bool INCLUSIVE> struct QuadScan {
  typedef T In, Out;
  static constexpr bool one = false;
  static void run(const T *in, T *out, uint mask) {
    for (uint q = 0; q < 32; q += 4) Scan<T, F, INCLUSIVE>::run(in, out, mask & 15u << q);
  }
};
MSL_INLINE uint quad_base() { return lane() & ~3u; }
MSL_INLINE uint quad_bits(uint simd_bits) { return simd_bits >> quad_base() & 15; }
}  // namespace detail

#define MSL_QUAD_REDUCE(name, TYPES, F)                                   \
  template <detail::TYPES T> MSL_INLINE T name(T v, MSL_SITE) {           \
    return detail::collective<detail::QuadReduce<T, detail::F>>(v, site); \
  }
MSL_QUAD_REDUCE(quad_sum, Lane, Add)
MSL_QUAD_REDUCE(quad_product, Lane, Mul)
MSL_QUAD_REDUCE(quad_max, Lane, Max)
MSL_QUAD_REDUCE(quad_min, Lane, Min)
MSL_QUAD_REDUCE(quad_and, IntLane, And)
MSL_QUAD_REDUCE(quad_or, IntLane, Or)
MSL_QUAD_REDUCE(quad_xor, IntLane, Xor)
#undef MSL_QUAD_REDUCE
#define MSL_QUAD_SCAN(name, F, INCLUSIVE)                                          \
  template <detail::Lane T> MSL_INLINE T name(T v, MSL_SITE) {                     \
    return detail::collective<detail::QuadScan<T, detail::F, INCLUSIVE>>(v, site); \
  }
MSL_QUAD_SCAN(quad_prefix_inclusive_sum, Add, true)
MSL_QUAD_SCAN(quad_prefix_exclusive_sum, Add, false)
MSL_QUAD_SCAN(quad_prefix_inclusive_product, Mul, true)
MSL_QUAD_SCAN(quad_prefix_exclusive_product, Mul, false)
#undef MSL_QUAD_SCAN

template <detail::Lane T> MSL_INLINE T quad_shuffle(T v, ushort from, MSL_SITE) {
  return detail::fetch(v, detail::quad_base() | (from & 3), site);
}
template <detail::Lane T> MSL_INLINE T quad_broadcast(T v, ushort from, MSL_SITE) {
  return quad_shuffle(v, from, site);
}
template <detail::Lane T> MSL_INLINE T quad_shuffle_xor(T v, ushort mask, MSL_SITE) {
  return quad_shuffle(v, (ushort)(detail::lane() ^ mask), site);
}
template <detail::Lane T> MSL_INLINE T quad_shuffle_rotate_down(T v, ushort delta, MSL_SITE) {
  return quad_shuffle(v, (ushort)(detail::lane() + delta), site);
}
template <detail::Lane T> MSL_INLINE T quad_shuffle_rotate_up(T v, ushort delta, MSL_SITE) {
  return quad_shuffle(v, (ushort)(detail::lane() - delta), site);
}
template <detail::Lane T> MSL_INLINE T quad_shuffle_down(T v, ushort delta, MSL_SITE) {
  uint i = detail::lane() & 3;
  return quad_shuffle(v, (ushort)(i + delta < 4 ? i + delta : i), site);
}
template <detail::Lane T> MSL_INLINE T quad_shuffle_up(T v, ushort delta, MSL_SITE) {
  uint i = detail::lane() & 3;
  return quad_shuffle(v, (ushort)(i >= delta ? i - delta : i), site);
}
template <detail::Lane T> MSL_INLINE T quad_shuffle_and_fill_up(T data, T filling, ushort delta,
                                                                ushort modulo = 4, MSL_SITE) {
  return simd_shuffle_and_fill_up(data, filling, delta, modulo, site);
}
template <detail::Lane T> MSL_INLINE T quad_shuffle_and_fill_down(T data, T filling, ushort delta,
                                                                  ushort modulo = 4, MSL_SITE) {
  return simd_shuffle_and_fill_down(data, filling, delta, modulo, site);
}

class quad_vote {
 public:
  typedef ushort vote_t;
  explicit constexpr quad_vote(vote_t v = 0) : bits(v) {}
  explicit constexpr operator vote_t() const { return bits; }
  constexpr bool all() const { return bits == 15; }
  constexpr bool any() const { return bits != 0; }

 private:
  vote_t bits;
};
MSL_INLINE quad_vote quad_ballot(bool b, MSL_SITE) {
  return quad_vote((ushort)detail::quad_bits(detail::collective<detail::Ballot>(b, site)));
}
MSL_INLINE quad_vote quad_active_threads_mask(MSL_SITE) {
  return quad_vote((ushort)detail::quad_bits(detail::collective<detail::Active>(0, site)));
}
MSL_INLINE bool quad_any(bool b, MSL_SITE) {
  return detail::quad_bits(detail::collective<detail::Ballot>(b, site)) != 0;
}
MSL_INLINE bool quad_all(bool b, MSL_SITE) {
  return detail::quad_bits(detail::collective<detail::Ballot>(!b, site)) == 0;
}
MSL_INLINE bool quad_is_first(MSL_SITE) {
  return (uint)__builtin_ctz(detail::quad_bits(detail::collective<detail::Active>(0, site))) ==
         (detail::lane() & 3);
}
template <detail::Lane T> MSL_INLINE T quad_broadcast_first(T v, MSL_SITE) {
  uint mask = detail::quad_bits(detail::collective<detail::Active>(0, site));
  return quad_shuffle(v, (ushort)__builtin_ctz(mask), site);
}
}  // namespace metal
