// metal_atomic (MSL specification, 6.16). Operations are relaxed machine atomics, fences are full fences. What Metal
// lacks is missing here too: float has no min and max, ulong has nothing but min and max.
#pragma once
#include "simd_ops.h"

namespace metal {
enum memory_order {
  memory_order_relaxed,
  memory_order_acquire,
  memory_order_release,
  memory_order_acq_rel,
  memory_order_seq_cst
};
enum thread_scope {
  thread_scope_thread,
  thread_scope_simdgroup,
  thread_scope_threadgroup,
  thread_scope_device
};

template <class T> struct atomic {
  static_assert(detail::same<T, int> || detail::same<T, uint> || detail::same<T, bool> ||
                    detail::same<T, float> || detail::same<T, ulong>,
                "Metal has atomics of int, uint, bool, float and ulong only");
  T value;
};
}  // namespace metal
typedef metal::atomic<int> atomic_int;
typedef metal::atomic<uint> atomic_uint;
typedef metal::atomic<bool> atomic_bool;
typedef metal::atomic<float> atomic_float;
typedef metal::atomic<ulong> atomic_ulong;

namespace metal {
using ::atomic_bool;
using ::atomic_float;
using ::atomic_int;
using ::atomic_uint;
using ::atomic_ulong;

namespace detail {
template <class T> struct atomic_value {};
template <class T> struct atomic_value<atomic<T>> {
  typedef T type;
};
template <class P> using value_t =
    typename atomic_value<pointee<P>>::type;  // of a pointer to any address space
template <class P> MSL_INLINE value_t<P> *at(P p) { return (value_t<P> *)&p->value; }
template <class T>
concept Counter = same<T, int> || same<T, uint>;
template <class T>
concept Sum = Counter<T> || same<T, float>;
template <class T>
concept Loadable = !same<T, ulong>;

template <class P, class F> MSL_INLINE value_t<P> modify(P p, F f) {
  value_t<P> *q = at(p), old, next;
  __atomic_load(q, &old, __ATOMIC_RELAXED);
  do next = f(old);
  while (!__atomic_compare_exchange(q, &old, &next, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return old;
}
}  // namespace detail

template <class P>
  requires detail::Loadable<detail::value_t<P>>
MSL_INLINE detail::value_t<P> atomic_load_explicit(P p, memory_order) {
  detail::value_t<P> v;
  __atomic_load(detail::at(p), &v, __ATOMIC_RELAXED);
  return v;
}
template <class P>
  requires detail::Loadable<detail::value_t<P>>
MSL_INLINE void atomic_store_explicit(P p, detail::value_t<P> v, memory_order) {
  __atomic_store(detail::at(p), &v, __ATOMIC_RELAXED);
}
template <class P>
  requires detail::Loadable<detail::value_t<P>>
MSL_INLINE detail::value_t<P> atomic_exchange_explicit(P p, detail::value_t<P> v, memory_order) {
  detail::value_t<P> old;
  __atomic_exchange(detail::at(p), &v, &old, __ATOMIC_RELAXED);
  return old;
}
template <class P>
  requires detail::Loadable<detail::value_t<P>>
MSL_INLINE bool atomic_compare_exchange_weak_explicit(P p, thread detail::value_t<P> *expected,
                                                      detail::value_t<P> v, memory_order,
                                                      memory_order) {
  return __atomic_compare_exchange(detail::at(p), expected, &v, false, __ATOMIC_RELAXED,
                                   __ATOMIC_RELAXED);
}

#ifdef MSL_CUDA
#define MSL_FETCH(name, TYPES, call)                                                          \
  template <class P>                                                                    \
    requires detail::TYPES<detail::value_t<P>>                                          \
  MSL_INLINE detail::value_t<P> atomic_fetch_##name##_explicit(P p, detail::value_t<P> b, \
                                                               memory_order) {          \
    return call;                                                                        \
  }
MSL_FETCH(add, Sum, ::atomicAdd(detail::at(p), b))
MSL_FETCH(sub, Sum, ::atomicAdd(detail::at(p), -b))
MSL_FETCH(min, Counter, ::atomicMin(detail::at(p), b))
MSL_FETCH(max, Counter, ::atomicMax(detail::at(p), b))
MSL_FETCH(and, Counter, ::atomicAnd(detail::at(p), b))
MSL_FETCH(or, Counter, ::atomicOr(detail::at(p), b))
MSL_FETCH(xor, Counter, ::atomicXor(detail::at(p), b))
#undef MSL_FETCH
#else
#define MSL_FETCH(name, TYPES, expression)                                                         \
  template <class P>                                                                               \
    requires detail::TYPES<detail::value_t<P>>                                                     \
  MSL_INLINE detail::value_t<P> atomic_fetch_##name##_explicit(P p, detail::value_t<P> b,          \
                                                               memory_order) {                     \
    return detail::modify(p,                                                                       \
                          [=](detail::value_t<P> a) { return (detail::value_t<P>)(expression); }); \
  }
MSL_FETCH(add, Sum, a + b)
MSL_FETCH(sub, Sum, a - b)
MSL_FETCH(min, Counter, a < b ? a : b)
MSL_FETCH(max, Counter, a > b ? a : b)
MSL_FETCH(and, Counter, a &b)
MSL_FETCH(or, Counter, a | b)
MSL_FETCH(xor, Counter, a ^ b)
#undef MSL_FETCH
#endif
// For ulong Metal has these two only, and they return nothing.
#define MSL_ULONG(name, expression)                                      \
  template <class P>                                                     \
    requires detail::same<detail::value_t<P>, ulong>                     \
  MSL_INLINE void atomic_##name##_explicit(P p, ulong b, memory_order) { \
    detail::modify(p, [=](ulong a) { return expression; });              \
  }
MSL_ULONG(min, a < b ? a : b)
MSL_ULONG(max, a > b ? a : b)
#undef MSL_ULONG

MSL_INLINE void atomic_thread_fence(mem_flags, memory_order, thread_scope = thread_scope_device) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
MSL_INLINE void threadgroup_barrier(mem_flags flags, memory_order,
                                    thread_scope = thread_scope_threadgroup, MSL_SITE) {
  msl::barrier((uint)flags, site);
}
MSL_INLINE void simdgroup_barrier(mem_flags f, memory_order, thread_scope = thread_scope_simdgroup,
                                  MSL_SITE) {
  simdgroup_barrier(f, site);
}
}  // namespace metal
