// metal_simdgroup: reductions, scans, shuffles and votes among the lanes of a simdgroup, and barriers (MSL
// specification, 6.9). Every operation is one rendezvous (msl::arrive in runtime.h): each active lane parks its operand,
// the last one to come runs Op::run for all of them, given the mask of lanes that take part, and each takes its result.
//
// Order of a reduction: with all 32 lanes, lane i is combined with lane i + 16, then i + 8, i + 4, i + 2, i + 1 (the
// tree of a shuffle-down reduction); with fewer lanes, in lane order. Scans go in lane order.
#pragma once
#include "integer.h"
#include "math.h"

#ifdef MSL_CUDA
#include "collective.h"
#endif
#define MSL_SITE msl::From site = MSL_HERE  // the operation's place in the source

namespace metal {
enum class mem_flags : uint {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
  mem_threadgroup_imageblock = 8,
  mem_object_data = 16
};
MSL_INLINE constexpr mem_flags operator|(mem_flags a, mem_flags b) {
  return (mem_flags)((uint)a | (uint)b);
}
MSL_INLINE constexpr mem_flags operator&(mem_flags a, mem_flags b) {
  return (mem_flags)((uint)a & (uint)b);
}

namespace detail {
#ifndef MSL_CUDA
MSL_INLINE uint lane() { return msl::thread_index() & 31; }

template <class Op> MSL_INLINE typename Op::Out collective(typename Op::In v, msl::From from) {
  static_assert(sizeof(typename Op::Out) <= 16, "a lane's result is at most 16 bytes");
  msl::Arena *a = msl::arena();
  uint me = msl::thread_index();
  msl::Simd *s = &a->simd[me / 32];
  msl::slots<typename Op::In>(s)[me & 31] = v;
  msl::arrive<Op>(a, s, me, from.site);
  return ((typename Op::Out *)s->result)[Op::one ? 0 : me & 31];
}
#endif

// The types that Metal's simd functions take; 64-bit integers are not among them.
template <class T>
concept Lane = (is_float<elem<T>> || is_int<elem<T>> || same<T, bool>) && sizeof(elem<T>) <= 4;
template <class T>
concept IntLane = Lane<T> && is_int<elem<T>>;

struct Add {
  template <class T> static T id() { return (T)0; }
  template <class T> static T f(T a, T b) { return a + b; }
};
struct Mul {
  template <class T> static T id() { return (T)1; }
  template <class T> static T f(T a, T b) { return a * b; }
};
struct Max {
  template <class T> static T f(T a, T b) { return __builtin_elementwise_max(a, b); }
};
struct Min {
  template <class T> static T f(T a, T b) { return __builtin_elementwise_min(a, b); }
};
struct And {
  template <class T> static T f(T a, T b) { return a & b; }
};
struct Or {
  template <class T> static T f(T a, T b) { return a | b; }
};
struct Xor {
  template <class T> static T f(T a, T b) { return a ^ b; }
};

template <class T, class F> struct Reduce {
  typedef T In, Out;
  static constexpr bool one = true;  // one result for all lanes
  static void run(const T *in, T *out, uint mask) {
    if (mask == ~0u) {
      T t[16];
      for (int i = 0; i < 16; i++) t[i] = F::f(in[i], in[i + 16]);
      for (int i = 0; i < 8; i++) t[i] = F::f(t[i], t[i + 8]);
      for (int i = 0; i < 4; i++) t[i] = F::f(t[i], t[i + 4]);
      *out = F::f(F::f(t[0], t[2]), F::f(t[1], t[3]));
    } else {
      T t = in[__builtin_ctz(mask)];
      for (mask &= mask - 1; mask; mask &= mask - 1) t = F::f(t, in[__builtin_ctz(mask)]);
      *out = t;
    }
  }
};
template <class T, class F, bool INCLUSIVE> struct Scan {
  typedef T In, Out;
  static constexpr bool one = false;
  static void run(const T *in, T *out, uint mask) {
    T before = F::template id<T>();
    for (uint l = 0; l < 32; l++)
      if (mask >> l & 1) {
        T with = F::f(before, in[l]);
        out[l] = INCLUSIVE ? with : before;
        before = with;
      }
  }
};
template <class T> struct Parked {
  T value;
  uint from;
};
template <class T>
struct Shuffle {  // from an inactive lane: its last operand (Metal leaves it undefined)
  typedef Parked<T> In;
  typedef T Out;
  static constexpr bool one = false;
  static void run(const In *in, T *out, [[maybe_unused]] uint mask) {
    for (uint l = 0; l < 32; l++) {
      uint from = in[l].from & 31;
#ifdef MSL_CHECK
      if (mask >> l & 1 && !(mask >> from & 1)) msl::check_lane(msl::arena(), l, from);
#endif
      out[l] = in[from].value;
    }
  }
};
template <class T> struct First {
  typedef T In, Out;
  static constexpr bool one = true;
  static void run(const T *in, T *out, uint mask) { *out = in[__builtin_ctz(mask)]; }
};
struct Ballot {
  typedef bool In;
  typedef uint Out;
  static constexpr bool one = true;
  static void run(const bool *in, uint *out, uint mask) {
    uint r = 0;
    for (uint l = 0; l < 32; l++)
      if (mask >> l & 1 && in[l]) r |= 1u << l;
    *out = r;
  }
};
struct Active {
  typedef char In;
  typedef uint Out;
  static constexpr bool one = true;
  static void run(const char *, uint *out, uint mask) { *out = mask; }
};
struct Barrier {
  typedef char In, Out;
  static constexpr bool one = true, whole_simdgroup = true;
  static void run([[maybe_unused]] const char *flags, char *, [[maybe_unused]] uint mask) {
#ifdef MSL_CHECK
    msl::check_simd_barrier(msl::arena(), (uint)flags[__builtin_ctz(mask)]);
#endif
  }
};
template <class T> MSL_INLINE T fetch(T v, uint from, msl::From site) {
  return collective<Shuffle<T>>({v, from}, site);
}
}  // namespace detail

// ---- barriers ----
MSL_INLINE void threadgroup_barrier(mem_flags flags, MSL_SITE) { msl::barrier((uint)flags, site); }
MSL_INLINE void simdgroup_barrier(mem_flags flags, MSL_SITE) {
  detail::collective<detail::Barrier>((char)flags, site);
}

// ---- reductions and scans ----
#define MSL_REDUCE(name, TYPES, F)                                    \
  template <detail::TYPES T> MSL_INLINE T name(T v, MSL_SITE) {       \
    return detail::collective<detail::Reduce<T, detail::F>>(v, site); \
  }
MSL_REDUCE(simd_sum, Lane, Add)
MSL_REDUCE(simd_product, Lane, Mul)
MSL_REDUCE(simd_max, Lane, Max)
MSL_REDUCE(simd_min, Lane, Min)
MSL_REDUCE(simd_and, IntLane, And)
MSL_REDUCE(simd_or, IntLane, Or)
MSL_REDUCE(simd_xor, IntLane, Xor)
#undef MSL_REDUCE
#define MSL_SCAN(name, F, INCLUSIVE)                                           \
  template <detail::Lane T> MSL_INLINE T name(T v, MSL_SITE) {                 \
    return detail::collective<detail::Scan<T, detail::F, INCLUSIVE>>(v, site); \
  }
MSL_SCAN(simd_prefix_inclusive_sum, Add, true)
MSL_SCAN(simd_prefix_exclusive_sum, Add, false)
MSL_SCAN(simd_prefix_inclusive_product, Mul, true)
MSL_SCAN(simd_prefix_exclusive_product, Mul, false)
#undef MSL_SCAN

// ---- shuffles: a lane outside the simdgroup gives the caller's own value ----
template <detail::Lane T> MSL_INLINE T simd_shuffle(T v, ushort from, MSL_SITE) {
  return detail::fetch(v, from, site);
}
template <detail::Lane T> MSL_INLINE T simd_broadcast(T v, ushort from, MSL_SITE) {
  return detail::fetch(v, from, site);
}
template <detail::Lane T> MSL_INLINE T simd_broadcast_first(T v, MSL_SITE) {
  return detail::collective<detail::First<T>>(v, site);
}
template <detail::Lane T> MSL_INLINE T simd_shuffle_xor(T v, ushort mask, MSL_SITE) {
  return detail::fetch(v, detail::lane() ^ mask, site);
}
template <detail::Lane T> MSL_INLINE T simd_shuffle_down(T v, ushort delta, MSL_SITE) {
  uint l = detail::lane();
  return detail::fetch(v, l + delta < 32 ? l + delta : l, site);
}
template <detail::Lane T> MSL_INLINE T simd_shuffle_up(T v, ushort delta, MSL_SITE) {
  uint l = detail::lane();
  return detail::fetch(v, l >= delta ? l - delta : l, site);
}
template <detail::Lane T> MSL_INLINE T simd_shuffle_rotate_down(T v, ushort delta, MSL_SITE) {
  return detail::fetch(v, (detail::lane() + delta) & 31, site);
}
template <detail::Lane T> MSL_INLINE T simd_shuffle_rotate_up(T v, ushort delta, MSL_SITE) {
  return detail::fetch(v, (detail::lane() - delta) & 31, site);
}
// Within each group of `modulo` lanes: data shifted by delta, and the vacated lanes filled from the other end of
// `filling`, as if the two were one row: filling then data (up), data then filling (down).
template <detail::Lane T> MSL_INLINE T simd_shuffle_and_fill_up(T data, T filling, ushort delta,
                                                                ushort modulo = 32, MSL_SITE) {
  uint l = detail::lane(), first = l & ~(modulo - 1u), from = first | ((l - delta) & (modulo - 1u));
  T shifted = detail::fetch(data, from, site), filled = detail::fetch(filling, from, site);
  return l - first >= delta ? shifted : filled;
}
template <detail::Lane T> MSL_INLINE T simd_shuffle_and_fill_down(T data, T filling, ushort delta,
                                                                  ushort modulo = 32, MSL_SITE) {
  uint l = detail::lane(), first = l & ~(modulo - 1u), from = first | ((l + delta) & (modulo - 1u));
  T shifted = detail::fetch(data, from, site), filled = detail::fetch(filling, from, site);
  return l - first + delta < modulo ? shifted : filled;
}

// ---- votes ----
class simd_vote {
 public:
  typedef ulong vote_t;
  explicit constexpr simd_vote(vote_t v = 0) : bits(v) {}
  explicit constexpr operator vote_t() const { return bits; }
  constexpr bool all() const { return bits == 0xffffffffu; }
  constexpr bool any() const { return bits != 0; }

 private:
  vote_t bits;
};
MSL_INLINE simd_vote simd_ballot(bool b, MSL_SITE) {
  return simd_vote(detail::collective<detail::Ballot>(b, site));
}
MSL_INLINE simd_vote simd_active_threads_mask(MSL_SITE) {
  return simd_vote(detail::collective<detail::Active>(0, site));
}
MSL_INLINE bool simd_any(bool b, MSL_SITE) {
  return detail::collective<detail::Ballot>(b, site) != 0;
}
MSL_INLINE bool simd_all(bool b, MSL_SITE) {
  return detail::collective<detail::Ballot>(!b, site) == 0;
}
MSL_INLINE bool simd_is_first(MSL_SITE) {
  return (uint)__builtin_ctz(detail::collective<detail::Active>(0, site)) == detail::lane();
}
}  // namespace metal
