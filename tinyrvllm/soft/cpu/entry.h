// What the front end's C++ stands on: function constants, threadgroup variables, kernel entry points.
// Included after metal_stdlib.h.
#pragma once

// A function constant is a constant expression once its value is known. The syntax-only pass knows none.
#ifdef MSL_AS
#define MSL_FUNCTION_CONSTANT(T, name, index) extern const T name; extern const bool msl_defined_##name
#else
#define MSL_FUNCTION_CONSTANT(T, name, index) \
  static constexpr T name = (T)(MSL_FC_##index); \
  static constexpr bool msl_defined_##name = MSL_FC_DEFINED_##index
#endif

// A function with simd operations or barriers is told where it was called from (msl/call_paths.py). The pass that checks
// address spaces does without, so that its diagnostics count the user's own arguments.
#ifdef MSL_AS
#define MSL_FROM
#define MSL_FROM_AND
#define MSL_FROM_AT_AND(site)
#define MSL_CALLER
#define MSL_CALLER_AND
#define MSL_CALLER_LAST
#define MSL_AND_CALLER_LAST
#define MSL_AND_BEHIND
#define MSL_ENTER (void)0
#define MSL_CALLING (void)0
#define MSL_ROUNDS(name)
#define MSL_NEXT(name) (void)0
#define MSL_LAST(name) (void)0
#else
#define MSL_FROM msl::From()
#define MSL_FROM_AND msl::From(),
#define MSL_FROM_AT_AND(site) msl::From(site),
#define MSL_CALLER msl::From msl_from
#define MSL_CALLER_AND msl::From msl_from,
#define MSL_CALLER_LAST msl::From msl_from = MSL_HERE
#define MSL_AND_CALLER_LAST , MSL_CALLER_LAST
#define MSL_AND_BEHIND , msl::From()  // its place is behind its arguments
#define MSL_ENTER msl::Call msl_call(msl_from)
#define MSL_CALLING msl::Call msl_calling{msl::From()}  // of what does not take a place (msl/events.py)
#define MSL_ROUNDS(name) msl::Rounds name{msl::From()}  // of a loop (msl/rounds.py)
#define MSL_NEXT(name) name.next()
#define MSL_LAST(name) name.last()
#endif

// Threadgroup variables are placed one after the other, number K of frame F behind number K - 1, at compile time: a
// friend function defined by a template instantiation (Placed) tells the next variable where the last one ended.
// F is a local type of the kernel, so that every instantiation of a kernel template has its own count.
namespace msl {
template <class F, int K> struct Slot { friend constexpr uint placed_end(Slot); };
template <class F, int K, uint End> struct Placed { friend constexpr uint placed_end(Slot<F, K>) { return End; } };
template <uint> struct Known {};
template <int N> struct Total {};
template <class F, int K> consteval uint end_of() {
  if constexpr (K < 0) return 0;
  else if constexpr (requires { Known<placed_end(Slot<F, K>{})>{}; }) return placed_end(Slot<F, K>{});
  else return end_of<F, K - 1>();  // number K is in a discarded branch
}
template <class F, int K, class T> consteval uint place() {
  constexpr uint start = (end_of<F, K - 1>() + 15) / 16 * 16 + MSL_GAP, end = start + (uint)sizeof(T);
  static_assert(end <= THREADGROUP_BYTES + MSL_GAP * (K + 1), "threadgroup memory exceeds the limit of 32768 bytes");
  return sizeof(Placed<F, K, end>) ? start : 0;
}
}  // namespace msl
#ifdef MSL_AS
#define MSL_KERNEL_RESULT void
#define MSL_THREADGROUP(name, T, K) \
  constexpr uint msl_at##K = msl::place<msl_frame, K, T>(); \
  auto &name = *(T *)(uptr)(64 + msl_at##K)
#else
#define MSL_KERNEL_RESULT decltype(auto)
#define MSL_THREADGROUP(name, T, K) \
  constexpr uint msl_at##K = msl::place<msl_frame, K, T>(); \
  auto &name = *(T *)(msl::threadgroup_memory(msl::arena()) + msl_at##K); \
  msl::check_variable(msl_at##K, sizeof(T), #name)
#endif
#define MSL_STATIC_BYTES(kernel, count) \
  static_assert(sizeof(msl::Placed<msl::Total<kernel>, 0, msl::end_of<msl_frame, count - 1>() - MSL_GAP * count>));

namespace msl {
using namespace metal;
template <class T> struct unref { typedef T type; static constexpr bool ref = false; };
template <class T> struct unref<T &> { typedef T type; static constexpr bool ref = true; };
template <class T> struct shape { static constexpr int n = 1; typedef T elem; };
template <class T, int N> struct shape<T __attribute__((ext_vector_type(N)))> { static constexpr int n = N; typedef T elem; };

// What a kernel parameter can be computed from.
struct Ctx {
  const Dispatch *d;
  U3 group_id, position, group;  // position: of the thread in its threadgroup
  uint index;                   // its index there
  char *memory;
};
template <class T> MSL_INLINE T from3(U3 v) {
  typedef typename shape<T>::elem E;
  if constexpr (shape<T>::n == 1) return (T)v.x;
  else if constexpr (shape<T>::n == 2) return T{(E)v.x, (E)v.y};
  else return T{(E)v.x, (E)v.y, (E)v.z};
}
#define MSL_GET template <class T> static inline __attribute__((always_inline)) T get(const Ctx &c)
template <int N> struct Buffer {
  MSL_GET {
    if constexpr (unref<T>::ref) return *(typename unref<T>::type *)c.d->buffer[N];
    else return (T)c.d->buffer[N];
  }
};
template <int N> struct Threadgroup {
  MSL_GET {
    if constexpr (unref<T>::ref) return *(typename unref<T>::type *)(c.memory + c.d->tg_offset[N]);
    else return (T)(c.memory + c.d->tg_offset[N]);
  }
};
MSL_INLINE uint size_of(U3 v) { return v.x * v.y * v.z; }
MSL_INLINE U3 one(uint n) { return {n, 1, 1}; }
#define MSL_BUILTIN(name, value) struct name { MSL_GET { return from3<T>(value); } }
MSL_BUILTIN(thread_position_in_grid, (U3{c.group_id.x * c.d->group.x + c.position.x,
                                         c.group_id.y * c.d->group.y + c.position.y,
                                         c.group_id.z * c.d->group.z + c.position.z}));
MSL_BUILTIN(threadgroup_position_in_grid, c.group_id);
MSL_BUILTIN(thread_position_in_threadgroup, c.position);
MSL_BUILTIN(threads_per_threadgroup, c.group);
MSL_BUILTIN(dispatch_threads_per_threadgroup, c.d->group);
MSL_BUILTIN(threads_per_grid, c.d->grid_threads);
MSL_BUILTIN(grid_size, c.d->grid_threads);
MSL_BUILTIN(grid_origin, (U3{0, 0, 0}));
MSL_BUILTIN(threadgroups_per_grid, c.d->groups);
MSL_BUILTIN(thread_index_in_threadgroup, one(c.index));
MSL_BUILTIN(simdgroup_index_in_threadgroup, one(c.index / 32));
MSL_BUILTIN(thread_index_in_simdgroup, one(c.index % 32));
MSL_BUILTIN(threads_per_simdgroup, one(32));
MSL_BUILTIN(thread_execution_width, one(32));
MSL_BUILTIN(simdgroups_per_threadgroup, one((size_of(c.group) + 31) / 32));
MSL_BUILTIN(dispatch_simdgroups_per_threadgroup, one((size_of(c.d->group) + 31) / 32));
MSL_BUILTIN(quadgroup_index_in_threadgroup, one(c.index / 4));
MSL_BUILTIN(thread_index_in_quadgroup, one(c.index % 4));
MSL_BUILTIN(quadgroups_per_threadgroup, one((size_of(c.group) + 3) / 4));

// Calls kernel f with one value for each parameter type P, made by the class K of the same place.
template <class F> struct caller;
template <class... P> struct caller<void (*)(P...)> {
  template <auto f, class... K> static inline __attribute__((always_inline)) void go(const Ctx &c) {
    static_assert(sizeof...(P) == sizeof...(K), "kernel parameters");
    f(K::template get<P>(c)...);
  }
};
template <auto f, class... K> MSL_INLINE void fiber_entry(const Dispatch *d, Arena *a, uint index) {
  uint x = a->group.x, y = a->group.y;
  bool flat = y == 1 && a->group.z == 1;
  U3 position = flat ? U3{index, 0, 0} : U3{index % x, index / x % y, index / x / y};
  Ctx c = {d, a->group_id, position, a->group, index, threadgroup_memory(a)};
  caller<decltype(f)>::template go<f, K...>(c);
}
template <auto f, class... K> MSL_INLINE void loop_entry(const Dispatch *d, Arena *a, uint) {
  Dispatch copy = *d;  // a copy, so that the compiler knows that stores through buffers leave it alone
  U3 group_id = a->group_id, group = a->group;
  uint index = 0;
  for (uint z = 0; z < group.z; z++)
    for (uint y = 0; y < group.y; y++, index += group.x)
      for (uint x = 0; x < group.x; x++) {
        Ctx c = {&copy, group_id, {x, y, z}, group, index + x, nullptr};
        caller<decltype(f)>::template go<f, K...>(c);
      }
}
}  // namespace msl

// Follow mode: notes of what one thread ran and assigned (msl/follow.py writes the calls).
#ifdef MSL_FOLLOW
namespace msl {
struct Note {
  uint step, kind, count;  // kind 0: no value; 1: float; 2: integer
  double value[4];
};
struct Followed {
  U3 group;
  uint index, most, count;  // count goes on behind `most`, notes do not
  Note *notes;
};
MSL_INLINE Note *note(uint step) {
  Arena *a = arena();
  Followed *f = a->d->followed;
  U3 g = a->group_id;
  if (a->first + thread_index() != f->index || g.x != f->group.x || g.y != f->group.y || g.z != f->group.z) return nullptr;
  if (f->count >= f->most) return nullptr;
  Note *n = &f->notes[f->count++];
  *n = {step, 0, 0, {}};
  return n;
}
template <class T> MSL_INLINE void note_value(uint step, const T &value) {
  typedef typename shape<T>::elem E;
  if constexpr (requires(E e) { (double)e; e + e; }) {
    Note *n = note(step);
    if (!n) return;
    n->kind = E(0.5f) == E(0) ? 2 : 1;
    n->count = shape<T>::n;
    if constexpr (shape<T>::n == 1) n->value[0] = (double)value;
    else
      for (int i = 0; i < shape<T>::n; i++) n->value[i] = (double)value[i];
  }
}
}  // namespace msl
#define MSL_STEP(k) (void)msl::note(k)
#define MSL_VALUE(k, value) msl::note_value(k, value)
#endif

// What a kernel's library shows to native.py.
#define MSL_ENTRY(side, ...) \
  MSL_EXPORT void msl_##side(const msl::Dispatch *d, msl::Arena *a, uint index) { __VA_ARGS__(d, a, index); }
#define MSL_ENTRY_BYTES(kernel) \
  MSL_EXPORT uint msl_static_bytes() { return msl::end_of<msl::Total<kernel>, 0>(); }

// float -> bfloat, which the compiler may call and no library of the process has.
extern "C" inline __attribute__((used, visibility("hidden"))) __bf16 __truncsfbf2(float f) {
  uint u = __builtin_bit_cast(uint, f);
  u = (u & 0x7fffffff) > 0x7f800000 ? (u >> 16) | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16;
  return __builtin_bit_cast(__bf16, (ushort)u);
}
