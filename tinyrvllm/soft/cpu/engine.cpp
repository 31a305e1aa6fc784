// Runs a command list on OS threads. Compiled once, loaded once; every kernel's library is called from here.
//
// 1. The caller of msl_run works itself. Workers (OS threads that Python started and that live in msl_worker) join when
//    they wake and leave when they find nothing: nobody ever waits for a worker that has not begun.
// 2. Threadgroups are taken from a shared ticket. A dispatch is over when `done` has counted all of its threadgroups;
//    only then may anyone begin the next.
// 3. The list belongs to the caller, so a worker must not touch it after msl_run returned: `state` counts who is inside.
#include "runtime.h"
#ifdef MSL_CHECK
#include "check.h"
#endif

#ifdef _WIN32
extern "C" __declspec(dllimport) int SwitchToThread(void);
extern "C" __declspec(dllimport) void AcquireSRWLockExclusive(void *), ReleaseSRWLockExclusive(void *);
extern "C" __declspec(dllimport) int SleepConditionVariableSRW(void *, void *, uint, uint);
extern "C" __declspec(dllimport) void WakeAllConditionVariable(void *);
static void yield() { SwitchToThread(); }
static void lock(void *m) { AcquireSRWLockExclusive(m); }
static void unlock(void *m) { ReleaseSRWLockExclusive(m); }
static void sleep_on(void *c, void *m) { SleepConditionVariableSRW(c, m, ~0u, 0); }
static void wake_all(void *c) { WakeAllConditionVariable(c); }
static void make_lock(void *, void *) {}  // both begin as zeros
#else
extern "C" int sched_yield(void);
extern "C" int pthread_mutex_init(void *, const void *), pthread_mutex_lock(void *), pthread_mutex_unlock(void *);
extern "C" int pthread_cond_init(void *, const void *), pthread_cond_wait(void *, void *), pthread_cond_broadcast(void *);
static void yield() { sched_yield(); }
static void lock(void *m) { pthread_mutex_lock(m); }
static void unlock(void *m) { pthread_mutex_unlock(m); }
static void sleep_on(void *c, void *m) { pthread_cond_wait(c, m); }
static void wake_all(void *c) { pthread_cond_broadcast(c); }
static void make_lock(void *m, void *c) { pthread_mutex_init(m, 0), pthread_cond_init(c, 0); }
#endif

namespace msl {
struct Pool {
  alignas(64) ulong state;   // list number << 32 | most workers << 17 | inside << 1 | open
  const Dispatch *const *list;
  uint count;
  uint shares;               // parts that a dispatch is cut into: several per thread, to even out their speed
  alignas(64) ulong ticket;  // number of the dispatch << 32 | its next threadgroup
  alignas(64) ulong done;    // threadgroups finished since the list began
  alignas(64) uint sleeping, quit;
  alignas(64) char mutex[128], condition[128];  // pthread's are 40..64 bytes
};
constexpr ulong OPEN = 1, ONE_INSIDE = 2, INSIDE = 0xffff * ONE_INSIDE, ONE_LIST = (ulong)1 << 32;

MSL_INLINE void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  asm volatile("yield");
#endif
}
// Another process may hold the CPU of the thread we wait for, so give ours up after a while.
template <class F> MSL_INLINE void spin_until(F ready) {
  for (uint spins = 0; !ready(); spins++) {
    if (spins < 2000) pause();
    else yield();
  }
}

static void fiber_main() {
  Arena *a = arena();
  uint me = thread_index();
  Simd *s = &a->simd[me / 32];
  for (;;) {
    const Dispatch *d = a->d;
    (me & 31 ? d->entry_rest : d->entry)(d, a, a->first + me);
    park(a, s, me, DONE);
  }
}

static void run_fibers(Arena *a, uint first, uint n) {
  a->first = first;
  a->nsimd = (n + 31) / 32;
  a->nalive = n;
  a->nbar = 0;
  for (uint k = 0; k < a->nsimd; k++) {
    Simd *s = &a->simd[k];
    uint left = n - k * 32;
    s->alive = s->ready = s->all = left >= 32 ? ~0u : (1u << left) - 1;
    s->wait = s->bar = 0;
    for (uint l = 0; l < 32; l++) s->path[l] = 0, s->call[l] = nullptr;
    s->site0 = MIXED;
    rejoin(s);
  }
  for (; a->started < n; a->started++) {
    uint i = a->started;
    // Stacks lie 64 KiB apart: without these shifts their hot lines would share a few sets of the L1 and L2 caches. 12 KiB
    // is what a frame of FRAME_BYTES (compiler.py) leaves.
    char *top = (char *)a + (HEADER + i + 1) * STACK - 1024 - i * 5 % 192 * 64;
    a->sp[i] = fresh_stack(top, fiber_main);
  }
  switch_stack(&a->scheduler_sp, a->sp[pick_lane(a, a->simd[0].ready)]);
}

MSL_INLINE uint smaller(uint a, uint b) { return a < b ? a : b; }
static void run_threadgroup(Arena *a, const Dispatch *d, uint g) {
  U3 id = {g % d->groups.x, g / d->groups.x % d->groups.y, g / d->groups.x / d->groups.y};
  a->d = d;
  a->group_id = id;
  a->group = {smaller(d->grid_threads.x - id.x * d->group.x, d->group.x),
              smaller(d->grid_threads.y - id.y * d->group.y, d->group.y),
              smaller(d->grid_threads.z - id.z * d->group.z, d->group.z)};
#ifdef MSL_CHECK
  check_group(a, d, g);
#endif
  uint n = a->group.x * a->group.y * a->group.z;
  if (d->level == 0) d->entry(d, a, 0);
  else if (d->level == 2) run_fibers(a, 0, n);
  else
    for (uint t = 0; t < n; t += 32) run_fibers(a, t, smaller(n - t, 32));
}

// Takes threadgroups first..end of dispatch number i, none when all are taken.
struct Range {
  uint first, end;
};
static Range take(Pool *p, uint i, uint total, uint chunk) {
  ulong ticket = __atomic_load_n(&p->ticket, __ATOMIC_RELAXED);
  for (;;) {
    uint number = (uint)(ticket >> 32), first = number == i ? (uint)ticket : 0;
    if (number > i || first >= total) return {0, 0};
    Range r = {first, smaller(first + chunk, total)};
    if (__atomic_compare_exchange_n(&p->ticket, &ticket, (ulong)i << 32 | r.end, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      return r;
  }
}

static void work(Pool *p, Arena *a) {
  ulong before = 0;  // threadgroups of the dispatches before this one
  for (uint i = 0; i < p->count; i++) {
    const Dispatch *d = p->list[i];
    uint total = d->groups.x * d->groups.y * d->groups.z, chunk = total / p->shares, mine = 0;
    for (;;) {
      Range r = take(p, i, total, chunk ? chunk : 1);
      if (r.first == r.end) break;
      for (uint g = r.first; g < r.end; g++, mine++) run_threadgroup(a, d, g);
    }
    if (mine) __atomic_add_fetch(&p->done, mine, __ATOMIC_RELEASE);
    before += total;
    spin_until([&] { return __atomic_load_n(&p->done, __ATOMIC_ACQUIRE) >= before; });
  }
}

// The fiber stacks lie outside the range that Windows keeps for this thread; stack probes and exceptions look there.
struct StackLimits {
#if defined(_WIN32) && defined(__x86_64__)
  uptr base, limit;
  StackLimits(Arena *a) {
    asm volatile("movq %%gs:8, %0\n\tmovq %%gs:16, %1" : "=r"(base), "=r"(limit));
    set((uptr)a + ARENA, (uptr)a);
  }
  ~StackLimits() { set(base, limit); }
  static void set(uptr base, uptr limit) {
    asm volatile("movq %0, %%gs:8\n\tmovq %1, %%gs:16" ::"r"(base), "r"(limit) : "memory");
  }
#else
  StackLimits(Arena *) {}
#endif
};

MSL_INLINE bool has_room(ulong state) { return state & OPEN && (state & INSIDE) / ONE_INSIDE < (state >> 17 & 0x7fff); }
}  // namespace msl

#ifdef MSL_CHECK
MSL_EXPORT void msl_watch_end(msl::Watch *w) { msl::end_watch(w); }
MSL_EXPORT uint msl_watch_size() { return sizeof(msl::Watch); }
#endif
MSL_EXPORT uint msl_pool_size() { return sizeof(msl::Pool); }
MSL_EXPORT uint msl_dispatch_size() { return sizeof(msl::Dispatch); }
MSL_EXPORT void msl_pool_init(msl::Pool *p) { make_lock(p->mutex, p->condition); }

// Runs the list on the calling thread and up to `workers` others; returns when all of it is done.
MSL_EXPORT void msl_run(msl::Pool *p, const msl::Dispatch *const *list, uint count, uint workers, msl::Arena *a) {
  using namespace msl;
  StackLimits limits(a);
  bool parallel = false;
  for (uint i = 0; i < count; i++) parallel |= list[i]->groups.x * list[i]->groups.y * list[i]->groups.z > 1;
  p->list = list;
  p->count = count;
  p->shares = 8 * (workers + 1);
  p->ticket = p->done = 0;
  if (!workers || !parallel) {
    work(p, a);
    return;
  }
  ulong number = (p->state / ONE_LIST + 1) * ONE_LIST;
  __atomic_store_n(&p->state, number | (ulong)workers << 17 | OPEN, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&p->sleeping, __ATOMIC_SEQ_CST)) {
    lock(p->mutex);
    wake_all(p->condition);
    unlock(p->mutex);
  }
  work(p, a);
  __atomic_and_fetch(&p->state, ~OPEN, __ATOMIC_ACQ_REL);
  spin_until([&] { return !(__atomic_load_n(&p->state, __ATOMIC_ACQUIRE) & INSIDE); });
}

// An OS thread's whole life as a worker: returns after msl_quit.
MSL_EXPORT void msl_worker(msl::Pool *p, msl::Arena *a) {
  using namespace msl;
  StackLimits limits(a);
  uint seen = 0;
  auto news = [&] {
    return (uint)(__atomic_load_n(&p->state, __ATOMIC_SEQ_CST) >> 32) != seen || __atomic_load_n(&p->quit, __ATOMIC_SEQ_CST);
  };
  for (;;) {
    for (uint spins = 0; spins < 4000 && !news(); spins++) pause();  // a list often follows a list
    if (!news()) {
      lock(p->mutex);
      __atomic_add_fetch(&p->sleeping, 1, __ATOMIC_SEQ_CST);
      while (!news()) sleep_on(p->condition, p->mutex);
      __atomic_sub_fetch(&p->sleeping, 1, __ATOMIC_SEQ_CST);
      unlock(p->mutex);
    }
    if (__atomic_load_n(&p->quit, __ATOMIC_SEQ_CST)) return;
    ulong state = __atomic_load_n(&p->state, __ATOMIC_ACQUIRE);
    while (has_room(state)) {
      if (__atomic_compare_exchange_n(&p->state, &state, state + ONE_INSIDE, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        work(p, a);
        __atomic_sub_fetch(&p->state, ONE_INSIDE, __ATOMIC_ACQ_REL);
        break;
      }
    }
    seen = (uint)(state >> 32);
  }
}

MSL_EXPORT void msl_quit(msl::Pool *p) {
  lock(p->mutex);
  __atomic_store_n(&p->quit, 1, __ATOMIC_SEQ_CST);
  wake_all(p->condition);
  unlock(p->mutex);
}
