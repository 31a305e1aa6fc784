// Runs the threads of a threadgroup as fibers: simd operations, barriers, divergence.
//
// 1. Normally the lanes of a simdgroup run in the order 0, 1, ... last, each up to the same event (a simd operation, a
//    barrier or the end). `site0` is that event; a lane that arrives just passes the turn to the next lane, and the last
//    one computes the operation for all.
// 2. A lane that meets another event makes its simdgroup MIXED: from then on it is scheduled by lane masks, until all
//    its lanes wait at one place again. Of diverged lanes those first in the source go on first.
// 3. An event is named by its source position (line * COLUMNS + column), which __builtin_LINE() gives for free, and by the
//    calls that led there: functions with events keep a list of them (Call), and a hash of the list. So do loops whose
//    lanes may be in different rounds (Rounds).
#pragma once
#include "fiber.h"

#ifdef MSL_CHECK
#define MSL_GAP 16384  // undeclared bytes between threadgroup variables, to catch overruns
#else
#define MSL_GAP 0
#endif

namespace msl {
struct U3 {
  uint x, y, z;
};

// One dispatch of a command list. Filled by execute.py, whose cdef must agree.
struct Arena;
struct Dispatch;
typedef void (*Entry)(const Dispatch *, Arena *, uint thread);
struct Dispatch {
  Entry entry;                   // for lane 0, and for all lanes where both are compiled alike
  Entry entry_rest;              // for lanes 1..31
  void *buffer[31];
  ulong length[31];              // bytes from buffer[i] to the end of what is bound
  uint tg_offset[31], tg_length[31];  // [[threadgroup(n)]] arguments inside the threadgroup's memory
  U3 grid_threads, groups, group;     // threads of the grid, threadgroups of the grid, threads of a threadgroup
  uint level;                    // 0: a plain loop; 1: simdgroups one by one; 2: all threads together
  uint order;                    // checking mode: seed of the lane order, 0: ascending
  struct Watch *watch;           // checking mode: the buffers' bounds, and where findings go
  struct Followed *followed;     // follow mode: which thread, and what it did
};

enum : uint { FRESH = 0, BARRIER = 1u << 31, DONE = ~0u, MIXED = ~0u - 1 };
struct Call;
struct Simd {
  ulong site0;                    // the event that lanes before the running one are at: path << 32 | site
  uint last;                      // the last live lane
  uint ready, wait, bar, alive;   // lane masks: runnable, at a simd operation, at a barrier, not returned
  uint all;                       // alive at the start
  uint site[32];
  uint path[32];                  // hash of the calls that each lane is in, and the innermost of them
  const Call *call[32];
  // Operands, of up to 32 bytes a lane (a shuffled float4 and its lane): lanes may wait at operations of different
  // types, so each size has its own row. Results are fetched before the next operation is computed.
  alignas(64) char slot[63 * 32], result[32 * 32];
};
constexpr uint AHEAD = 4;         // so many lanes before its turn a stack is prefetched
struct Arena {
  void *sp[MAX_THREADS + AHEAD];  // saved stack pointers
  void *scheduler_sp;
  const Dispatch *d;
  U3 group_id, group;             // group: this threadgroup's size (smaller at the edges of dispatchThreads)
  uint first;                      // thread index of fiber 0 (at level 1 one simdgroup runs at a time)
  uint nsimd, nalive, nbar;
  uint started;                   // stacks that have been laid out
  struct Checker *checker;        // the checking mode's own state
  Simd simd[MAX_THREADS / 32];
  alignas(256) char memory[2 * THREADGROUP_BYTES];  // static variables (with gaps), then [[threadgroup(n)]] arguments
};
static_assert(sizeof(Arena) < HEADER * STACK, "");

MSL_INLINE Arena *arena() { return (Arena *)(stack_pointer() & ~(ARENA - 1)); }
MSL_INLINE uint thread_index() { return (uint)((stack_pointer() & (ARENA - 1)) / STACK) - (uint)HEADER; }

// A place in the source, by default that of the call which it is an argument of.
#define MSL_HERE __builtin_LINE() * msl::COLUMNS + __builtin_COLUMN()
constexpr uint COLUMNS = 8192;
struct From {
  uint site;
  constexpr From(uint at = MSL_HERE) : site(at) {}
  constexpr operator uint() const { return site; }
};
// A call of a function with events, or a loop that counts its rounds, while it runs.
struct Call {
  const Call *caller;
  uint site, before;              // where it was made; the path of its caller
  __attribute__((always_inline)) Call(From from) : site(from.site) {
    uint me = thread_index(), l = me & 31;
    Simd *s = &arena()->simd[me / 32];
    caller = s->call[l];
    before = s->path[l];
    s->call[l] = this;
    s->path[l] = path(before, site);
  }
  __attribute__((always_inline)) ~Call() {
    uint me = thread_index(), l = me & 31;
    Simd *s = &arena()->simd[me / 32];
    s->call[l] = caller;
    s->path[l] = before;
  }
  static constexpr uint path(uint before, uint place) { return ((before ^ before >> 16) + place) * 2654435761u; }
};
// A call of what takes no place, with one behind its arguments: calling(site, f)(arguments).
template <class F> struct Calling {
  From from;
  F &&f;
  template <class... A> __attribute__((always_inline)) auto operator()(A &&...a) {
    Call call(from);
    return f((A &&)a...);
  }
};
template <class F> MSL_INLINE Calling<F> calling(uint site, F &&f) { return {From(site), (F &&)f}; }
constexpr uint LOOP = 1u << 31;     // in the site of a Call: it is a Rounds
struct Rounds : Call {
  uint round = 0;                   // odd in the last part of a round, the step of a `for`
  __attribute__((always_inline)) Rounds(From from) : Call(From(from.site | LOOP)) {}
  __attribute__((always_inline)) void next() { begin((round | 1) + 1); }
  __attribute__((always_inline)) void last() { begin(round | 1); }
  __attribute__((always_inline)) void begin(uint number) {
    uint me = thread_index();
    round = number;
    arena()->simd[me / 32].path[me & 31] = path(path(before, site), round);
  }
};

#ifdef MSL_CHECK
constexpr uint THREADGROUP_SPACE = 2 << 20;  // room for the gaps
MSL_INLINE char *threadgroup_memory(Arena *a) { return (char *)a + (96 << 20); }  // far from all else
void check_barrier_flags(Arena *a, uint flags);  // in check.h, as are these
void check_barrier(Arena *a);
void check_simd(Arena *a, Simd *s, uint mask, bool whole_simdgroup);
void count_simd(Arena *a);
void check_simd_barrier(Arena *a, uint flags);
void check_lane(Arena *a, uint lane, uint from);
void check_variable(uint offset, uint size, const char *name);
uint pick_lane(Arena *a, uint mask);
#else
MSL_INLINE char *threadgroup_memory(Arena *a) { return a->memory; }
MSL_INLINE uint pick_lane(Arena *, uint mask) { return (uint)__builtin_ctz(mask); }
MSL_INLINE void check_variable(uint, uint, const char *) {}
MSL_INLINE void count_simd(Arena *) {}
#endif

MSL_INLINE void go(Arena *a, uint from, uint to) {
  if (to != from) switch_stack(&a->sp[from], a->sp[to]);
}

// All live lanes are runnable: back to running in order, if they are 0..last.
MSL_INLINE void rejoin(Simd *s) {
#ifndef MSL_CHECK
  if ((s->alive & (s->alive + 1)) == 0) {
    s->site0 = FRESH;
    s->last = (uint)__builtin_popcount(s->alive) - 1;
  }
#else
  (void)s;
#endif
}

// Where a lane waits, from the kernel inwards: the places of the calls and loops (with their rounds) that it is in, then
// the event's.
constexpr uint DEEPEST = 64;
MSL_INLINE uint places(const Simd *s, uint lane, uint *to) {
  uint n = 1;
  for (const Call *c = s->call[lane]; c && n + 1 < DEEPEST; c = c->caller) n += 1 + (c->site >> 31);
  uint i = n - 1;
  to[i] = s->site[lane] & ~BARRIER;
  for (const Call *c = s->call[lane]; c && i; c = c->caller) {
    if (c->site & LOOP) to[--i] = ((const Rounds *)c)->round;
    if (i) to[--i] = c->site & ~LOOP;
  }
  return n;
}
MSL_INLINE bool same_event(const Simd *s, uint l, const Simd *t, uint k) {
  return s->site[l] == t->site[k] && s->path[l] == t->path[k];
}
MSL_INLINE bool comes_before(const Simd *s, uint l, uint k) {
  uint a[DEEPEST], b[DEEPEST], n = places(s, l, a), m = places(s, k, b);
  for (uint i = 0; i < n && i < m; i++)
    if (a[i] != b[i]) return a[i] < b[i];
  return n < m;
}
// Diverged: the lanes at the operation that comes first in the source, as the kernel calls it.
static MSL_NOINLINE uint first_in_source(const Simd *s) {
  uint first = (uint)__builtin_ctz(s->wait), mask = 0;
  for (uint l = first + 1; l < 32; l++)
    if (s->wait >> l & 1 && !same_event(s, l, s, first) && comes_before(s, l, first)) first = l;
  for (uint l = 0; l < 32; l++)
    if (s->wait >> l & 1 && same_event(s, l, s, first)) mask |= 1u << l;
  return mask;
}

MSL_INLINE void release_barrier(Arena *a) {
#ifdef MSL_CHECK
  check_barrier(a);
#endif
  for (uint i = 0; i < a->nsimd; i++) {
    Simd *s = &a->simd[i];
    s->ready = s->bar;
    s->bar = 0;
    if (s->ready) rejoin(s);
  }
  a->nbar = 0;
}

// No lane of the running simdgroup can go on: finds the next thread to run, releasing what waits.
static MSL_NOINLINE void reschedule(Arena *a, uint me) {
  if (a->nalive == 0) {
    switch_stack(&a->sp[me], a->scheduler_sp);
    return;
  }
  if (a->nbar == a->nalive) release_barrier(a);
  uint k = me / 32;
  for (uint j = 0; j < a->nsimd; j++, k = k + 1 == a->nsimd ? 0 : k + 1) {
    Simd *s = &a->simd[k];
    if (!s->ready && s->wait) {
      uint mask = first_in_source(s);
      s->ready = mask;  // they compute the operation among themselves, at the end of arrive()
    }
    if (s->ready) {
      go(a, me, k * 32 + pick_lane(a, s->ready));
      return;
    }
  }
  __builtin_trap();
}
MSL_INLINE void next_lane(Arena *a, Simd *s, uint me) {
  if (s->ready) go(a, me, (me & ~31u) + pick_lane(a, s->ready));
  else reschedule(a, me);
}

// From running in order to lane masks.
static MSL_NOINLINE void mix(Arena *a, Simd *s, uint me) {
  uint l = me & 31, before = (1u << l) - 1, event = (uint)s->site0;
  if (event == MIXED) return;
  s->site0 = MIXED;
  s->ready = s->alive & ~before;
  s->wait = 0;
  if (l == 0) return;
  if (event == DONE) {
    s->alive &= ~before;
    a->nalive -= l;
  } else if (event & BARRIER) {
    s->bar = before;
    a->nbar += l;
  } else {
    s->wait = before;
  }
  for (uint i = 0; i < l; i++) s->site[i] = event;
}

template <class T> MSL_INLINE T *slots(Simd *s) {
  static_assert(sizeof(T) <= 32 && (sizeof(T) & (sizeof(T) - 1)) == 0, "an operand has 1, 2, 4, ... 32 bytes");
  return (T *)(s->slot + 32 * (sizeof(T) - 1));
}
// True when all lanes before this one are at the same event.
MSL_INLINE bool in_order(Simd *s, uint l, uint site) {
  ulong event = (ulong)s->path[l] << 32 | site;
  if (l == 0) {
    if (s->site0 == MIXED) return false;
    s->site0 = event;
    return true;
  }
  return s->site0 == event;
}

template <class Op> static MSL_NOINLINE void resolve(Simd *s, uint mask) {
#ifdef MSL_CHECK
  check_simd(arena(), s, mask, requires { Op::whole_simdgroup; });
#endif
  count_simd(arena());
  Op::run(slots<typename Op::In>(s), (typename Op::Out *)s->result, mask);
  s->ready = mask;
  s->wait &= ~mask;
}
template <class Op> static MSL_NOINLINE void arrive_mixed(Arena *a, Simd *s, uint me, uint site) {
  mix(a, s, me);
  uint bit = 1u << (me & 31);
  s->site[me & 31] = site;
  s->ready &= ~bit;
  s->wait |= bit;
  if (!s->ready) {
    bool same = s->wait == s->alive;
    for (uint i = 0; i < 32; i++) same &= same_event(s, i, s, me & 31) || !(s->alive >> i & 1);
    if (same) {
      resolve<Op>(s, s->wait);
      rejoin(s);
    }
  }
  next_lane(a, s, me);
}

// A simdgroup operation. Each lane has parked its operand in its slot and hands over; the last one runs Op for all.
template <class Op> MSL_INLINE void arrive(Arena *a, Simd *s, uint me, uint site) {
  uint l = me & 31;
  if (__builtin_expect(in_order(s, l, site), 1)) {
    if (l != s->last) {
      switch_stack(&a->sp[me], a->sp[me + 1]);
    } else {
      count_simd(a);
      Op::run(slots<typename Op::In>(s), (typename Op::Out *)s->result, s->alive);
      if (l) switch_stack(&a->sp[me], a->sp[me - l]);
    }
  } else {
    arrive_mixed<Op>(a, s, me, site);
  }
  if (__builtin_expect(s->wait >> l & 1, 0)) resolve<Op>(s, s->ready);  // woken by reschedule's divergent case
}

// At a barrier or at the end: the last lane in order, or a mixed simdgroup.
static MSL_NOINLINE void leave(Arena *a, Simd *s, uint me, uint event) {
  uint l = me & 31, bit = 1u << l;
  if (s->site0 == ((ulong)s->path[l] << 32 | event)) {
    s->ready = 0;
    if (event == DONE) {
      a->nalive -= l + 1;
      s->alive = 0;
    } else {
      s->bar = s->alive;
      a->nbar += l + 1;
    }
    reschedule(a, me);
    return;
  }
  mix(a, s, me);
  s->ready &= ~bit;
#ifdef MSL_CHECK
  s->site[l] = event;
#endif
  if (event == DONE) {
    s->alive &= ~bit;
    a->nalive--;
  } else {
    s->bar |= bit;
    a->nbar++;
  }
  next_lane(a, s, me);
}
MSL_INLINE void park(Arena *a, Simd *s, uint me, uint event) {
  // With 512 threads the stacks have left the first-level cache: 9 ns a lane without this, 5 with it.
  char *soon = (char *)a->sp[me + AHEAD];
  __builtin_prefetch(soon);
  __builtin_prefetch(soon + 64);
  if (__builtin_expect(in_order(s, me & 31, event) && (me & 31) != s->last, 1)) {
    switch_stack(&a->sp[me], a->sp[me + 1]);
  } else {
    leave(a, s, me, event);
  }
}
MSL_INLINE void barrier([[maybe_unused]] uint flags, From from) {  // flags: which memory it orders
  Arena *a = arena();
  uint me = thread_index();
#ifdef MSL_CHECK
  check_barrier_flags(a, flags);
#endif
  park(a, &a->simd[me / 32], me, from.site | BARRIER);
}
}  // namespace msl
