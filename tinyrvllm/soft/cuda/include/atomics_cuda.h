// The atomic builtins that msl/atomics.h is written with. Metal's are relaxed; CUDA's functions are too.
#pragma once
#include "runtime.h"

#ifndef __ATOMIC_RELAXED
#define __ATOMIC_RELAXED 0
#define __ATOMIC_SEQ_CST 5
#endif
#define __atomic_load(p, v, order) (*(v) = *(const volatile metal::detail::same_type<decltype(*(p))> *)(p))
#define __atomic_store(p, v, order) (*(volatile metal::detail::same_type<decltype(*(p))> *)(p) = *(v))
#define __atomic_exchange(p, v, old, order) (*(old) = metal::detail::exchange(p, *(v)))
#define __atomic_compare_exchange(p, expected, v, weak, yes, no) metal::detail::compare_exchange(p, expected, *(v))
#define __atomic_thread_fence(order) __threadfence()

namespace metal::detail {
template <class T> struct same_as { typedef T type; };
template <class T> struct same_as<T &> { typedef T type; };
template <class T> using same_type = typename same_as<T>::type;
template <int BYTES> struct atomic_word {
  static_assert(BYTES >= 4, "atomic_bool is not supported by the cuda device: use atomic_uint");
  typedef uint type;
};
template <> struct atomic_word<8> { typedef ulong type; };
template <class T> using word_of = typename atomic_word<sizeof(T)>::type;
template <class T> MSL_INLINE T exchange(T *p, T v) {
  return __builtin_bit_cast(T, ::atomicExch((word_of<T> *)p, __builtin_bit_cast(word_of<T>, v)));
}
template <class T> MSL_INLINE bool compare_exchange(T *p, T *expected, T v) {
  word_of<T> before = __builtin_bit_cast(word_of<T>, *expected);
  word_of<T> old = ::atomicCAS((word_of<T> *)p, before, __builtin_bit_cast(word_of<T>, v));
  *expected = __builtin_bit_cast(T, old);
  return old == before;
}
}  // namespace metal::detail
