// Simd operations among the lanes of a warp. Included by msl/simd_ops.h, whose operations are descriptions (Op::In,
// Op::Out, Op::run over all lanes' operands): those in the engine's inner loops have forms of their own below, the
// others gather the operands of all lanes and run the description itself.
//
// Metal's operations work among the active lanes. Where all 32 take part, shuffles do it.
#pragma once
#include "elementwise.h"

namespace metal::detail {
MSL_INLINE uint lane() { return msl::thread_index() & 31; }
// Any operand of up to 32 bytes, 4 bytes at a time.
template <class T> MSL_INLINE T from_lane(uint mask, T v, uint from) {
  constexpr int words = (sizeof(T) + 3) / 4;
  uint w[words] = {};
  if constexpr (sizeof(T) % 4 == 0) {
    struct Words { uint w[words]; };
    Words all = __builtin_bit_cast(Words, v);
    _Pragma("unroll") for (int i = 0; i < words; i++) all.w[i] = __shfl_sync(mask, all.w[i], from);
    return __builtin_bit_cast(T, all);
  } else {
    struct Bytes { uchar b[sizeof(T)]; };
    Bytes bytes = __builtin_bit_cast(Bytes, v);
    _Pragma("unroll") for (int i = 0; i < (int)sizeof(T); i++) w[i / 4] |= (uint)bytes.b[i] << i % 4 * 8;
    _Pragma("unroll") for (int i = 0; i < words; i++) w[i] = __shfl_sync(mask, w[i], from);
    _Pragma("unroll") for (int i = 0; i < (int)sizeof(T); i++) bytes.b[i] = (uchar)(w[i / 4] >> i % 4 * 8);
    return __builtin_bit_cast(T, bytes);
  }
}
template <class Op> struct Collective {
  static typename Op::Out run(typename Op::In v) {
    typename Op::In in[32];
    typename Op::Out out[32];
    uint mask = __activemask();
    _Pragma("unroll 1") for (uint l = 0; l < 32; l++) in[l] = from_lane(mask, v, l);
    Op::run(in, out, mask);
    return out[Op::one ? 0 : lane()];
  }
};
template <class Op> MSL_INLINE typename Op::Out collective(typename Op::In v, msl::From) {
  return Collective<Op>::run(v);
}

template <class T, class F> struct Reduce;
template <class T, class F, bool INCLUSIVE> struct Scan;
template <class T> struct Shuffle;
template <class T> struct Parked;
template <class T> struct First;
struct Ballot;
struct Active;
struct Barrier;
// The pairs of lanes are those of the CPU's tree, so that float sums have the same bits.
template <class T, class F> struct Collective<Reduce<T, F>> {
  static T run(T v) {
    uint mask = __activemask();
    if (mask == ~0u) {
      _Pragma("unroll") for (uint step = 16; step; step /= 2) v = F::f(v, from_lane(~0u, v, lane() ^ step));
      return v;
    }
    T t = from_lane(mask, v, __ffs((int)mask) - 1);
    for (uint rest = mask & (mask - 1); rest; rest &= rest - 1)
      t = F::f(t, from_lane(mask, v, __ffs((int)rest) - 1));
    return t;
  }
};
template <class T, class F, bool INCLUSIVE> struct Collective<Scan<T, F, INCLUSIVE>> {
  static T run(T v) {
    uint mask = __activemask(), me = lane();
    T before = F::template id<T>(), result = before;
    if constexpr (__is_integral(T)) {  // any order gives the same integers
      if (mask == ~0u) {
        T with = v;
        _Pragma("unroll") for (uint step = 1; step < 32; step *= 2) {
          T other = from_lane(~0u, with, me - step);
          if (me >= step) with = F::f(with, other);
        }
        if (INCLUSIVE) return with;
        T one_before = from_lane(~0u, with, me - 1);
        return me ? one_before : before;
      }
    }
    for (uint rest = mask; rest; rest &= rest - 1) {
      uint l = __ffs((int)rest) - 1;
      T with = F::f(before, from_lane(mask, v, l));
      if (l == me) result = INCLUSIVE ? with : before;
      before = with;
    }
    return result;
  }
};
template <class T> struct Collective<Shuffle<T>> {
  static T run(Parked<T> p) { return from_lane(__activemask(), p.value, p.from & 31); }
};
template <class T> struct Collective<First<T>> {
  static T run(T v) {
    uint mask = __activemask();
    return from_lane(mask, v, __ffs((int)mask) - 1);
  }
};
template <> struct Collective<Ballot> {
  static uint run(bool b) { return __ballot_sync(__activemask(), b); }
};
template <> struct Collective<Active> {
  static uint run(char) { return __activemask(); }
};
template <> struct Collective<Barrier> {
  static char run(char) {
    __syncwarp(__activemask());
    return 0;
  }
};
}  // namespace metal::detail
