// The checking mode's state and reports, and what the scheduler (runtime.h) asks it. access.h has the checks of memory.
// Reports are numbers here; check.py makes sentences of them.
#pragma once
#include "shadow.h"
extern "C" void *memset(void *, int, size_t);

namespace msl {
// In the order of report.py's _KINDS.
enum : uint { OUT_OF_BOUNDS = 1, THREADGROUP_OUT_OF_BOUNDS, LOCAL_OUT_OF_BOUNDS, MISALIGNED, UNINITIALISED, RACE,
              BARRIER_DIVERGENCE, EARLY_RETURN, SIMD_DIVERGENCE, SIMD_RETURN, PARTIAL_DIVERGENCE,
              PARTIAL_RETURN, INACTIVE_LANE };
enum : uint { DEVICE = 0, THREADGROUP = 1 };           // which memory
constexpr uint NOBODY = ~0u, MAX_REPORTS = 64, MAX_VARIABLES = 64;

// Mirrored by check.py's cdef, as are Region and Watch.
struct Party { uint thread, group, site; };            // group: index of the threadgroup in the grid
struct Variable { const char *name; uint offset, size, slot; };  // threadgroup memory; name null: [[threadgroup(slot)]]
struct Report {
  ulong address;                                       // in device memory, or an offset in threadgroup memory
  uint kind, size, count;
  Party who, other;
  Variable variable;
};
constexpr Party nobody = {NOBODY, 0, 0};
constexpr Variable nothing = {nullptr, 0, 0, NOBODY};

// A range that the kernel may touch. reads, writes: one bit a byte, set when it is touched. pages: what has touched it;
// null where the kernel has no way to write, so that nothing can race.
struct Region { ulong low, high; uchar *reads, *writes; Page *pages; };
// One access, for whoever wants to see them all (access_log.py). address: in device memory, or an offset in `variable`.
struct Logged { ulong address; uint size, what, step; Party who; Variable variable; };
struct Watch {                                         // one dispatch under observation
  Region *regions;
  uint region_count, report_count, lock;
  Report reports[MAX_REPORTS];
  Logged *log; ulong log_most, log_count;              // log null: nobody wants to see them
  uint barriers, simd_operations;                      // by all threadgroups; by all simdgroups
};
struct Checker {                                       // what an arena remembers
  uint epoch;                                          // number of this threadgroup among all this arena has run
  uint group;                                          // its index in the grid
  uint order;                                          // state of the generator that picks lanes; 0: in order
  uint tick[2]; ushort simd_tick[2][32];               // barriers so far that order DEVICE, THREADGROUP memory
  uint barrier_flags;                                  // of the threadgroup_barrier being waited at
  uint barriers;                                       // threadgroup_barriers passed, whatever they order
  uint last_site[MAX_THREADS];                         // each thread's last access: where one that returned was last seen
  Variable variables[MAX_VARIABLES]; uint variable_count;
  uint declared[THREADGROUP_SPACE];                    // epoch in which this byte was last part of a variable
  Page pages[THREADGROUP_SPACE / Page::BYTES];
};

MSL_INLINE void end_watch(Watch *w) {
  for (uint i = 0; i < w->region_count; i++) {
    Region &r = w->regions[i];
    for (ulong k = 0; r.pages && k <= r.high / Page::BYTES - r.low / Page::BYTES; k++) free(r.pages[k].cells);
  }
}
MSL_INLINE void report(Arena *a, uint kind, ulong address, uint size, Party who, Party other = nobody,
                       Variable variable = nothing) {
  Watch *w = a->d->watch;
  while (__atomic_exchange_n(&w->lock, 1, __ATOMIC_ACQUIRE)) {}
  uint i = 0;
  for (; i < w->report_count; i++) {
    Report &r = w->reports[i];
    if (r.kind == kind && r.who.site == who.site && r.other.site == other.site) { r.count++; break; }
  }
  if (i == w->report_count && i < MAX_REPORTS) {
    w->reports[i] = {address, kind, size, 1, who, other, variable};
    w->report_count++;
  }
  __atomic_store_n(&w->lock, 0, __ATOMIC_RELEASE);
}
// Gives up the running threadgroup; the stacks are laid out afresh for the next one.
MSL_INLINE void abandon(Arena *a) {
  void *here;
  a->started = 0; a->nalive = 0;
  switch_stack(&here, a->scheduler_sp);
}

// ---- called by the scheduler ----
static void declare(Arena *a, Variable v) {
  Checker *c = a->checker;
  if (!v.size || c->declared[v.offset] == c->epoch) return;
  if (c->variable_count < MAX_VARIABLES) c->variables[c->variable_count++] = v;
  for (uint i = 0; i < v.size; i++) c->declared[v.offset + i] = c->epoch;
  memset(threadgroup_memory(a) + v.offset, 0xff, v.size);  // NaN, so that what is computed from it shows
}
void check_group(Arena *a, const Dispatch *d, uint group) {
  if (!a->checker) a->checker = (Checker *)calloc(1, sizeof(Checker));
  Checker *c = a->checker;
  c->epoch++; c->group = group; c->tick[DEVICE]++; c->tick[THREADGROUP]++; c->barriers = c->variable_count = 0;
  c->order = d->order ? d->order * 2654435761u + group * 2246822519u : 0;
  memset(c->last_site, 0, sizeof(c->last_site));
  for (uint i = 0; i < 31; i++) declare(a, {nullptr, d->tg_offset[i], d->tg_length[i], i});
}
uint pick_lane(Arena *a, uint mask) {
  uint &s = a->checker->order;
  if (s) { s ^= s << 13; s ^= s >> 17; s ^= s << 5; }
  for (uint n = s % (uint)__builtin_popcount(mask); n; n--) mask &= mask - 1;
  return (uint)__builtin_ctz(mask);
}
void check_barrier_flags(Arena *a, uint flags) { a->checker->barrier_flags = flags; }
// Every live thread waits at a threadgroup_barrier: it must be the same one, and every thread must be there.
void check_barrier(Arena *a) {
  Checker *c = a->checker;
  Party first = {NOBODY, c->group, 0}, other = first, returned = first;
  Simd *of_first = nullptr;
  for (uint t = 0; t < a->nsimd * 32; t++) {
    Simd &s = a->simd[t / 32];
    uint bit = 1u << t % 32, site = s.site[t % 32] & ~BARRIER;
    if (s.bar & bit && first.thread == NOBODY) first = {t, c->group, site}, of_first = &s;
    else if (s.bar & bit && other.thread == NOBODY && !same_event(&s, t % 32, of_first, first.thread % 32)) other = {t, c->group, site};
    if (s.all & ~s.alive & bit && returned.thread == NOBODY) returned = {t, c->group, c->last_site[t]};
  }
  if (other.thread != NOBODY) report(a, BARRIER_DIVERGENCE, 0, 0, other, first);
  if (returned.thread != NOBODY) report(a, EARLY_RETURN, 0, 0, first, returned);
  if (c->barrier_flags & 1) c->tick[DEVICE]++;
  if (c->barrier_flags & 2) c->tick[THREADGROUP]++;
  c->barriers++;
  __atomic_fetch_add(&a->d->watch->barriers, 1, __ATOMIC_RELAXED);
}
void count_simd(Arena *a) { __atomic_fetch_add(&a->d->watch->simd_operations, 1, __ATOMIC_RELAXED); }
// The lanes of `mask` carry out a simd operation together. `whole_simdgroup`: only if all lanes do is it defined.
void check_simd(Arena *a, Simd *s, uint mask, bool whole_simdgroup) {
  uint absent = s->all & ~mask;
  if (!absent) return;
  Checker *c = a->checker;
  uint base = (uint)(s - a->simd) * 32, lane = (uint)__builtin_ctz(mask), gone = (uint)__builtin_ctz(absent);
  bool waits = (s->wait | s->bar) >> gone & 1;
  report(a, (waits ? SIMD_DIVERGENCE : SIMD_RETURN) + (whole_simdgroup ? 0 : 2), 0, mask, {base + lane, c->group, s->site[lane]},
         {base + gone, c->group, waits ? s->site[gone] & ~BARRIER : c->last_site[base + gone]});
}
void check_simd_barrier(Arena *a, uint flags) {
  Checker *c = a->checker;
  uint simdgroup = thread_index() / 32;
  if (flags & 1) c->simd_tick[DEVICE][simdgroup]++;
  if (flags & 2) c->simd_tick[THREADGROUP][simdgroup]++;
}
// A shuffle reads the operand of a lane that does not take part in it.
void check_lane(Arena *a, uint lane, uint from) {
  uint simdgroup = thread_index() / 32;
  report(a, INACTIVE_LANE, from, 0, {simdgroup * 32 + lane, a->checker->group, a->simd[simdgroup].site[lane]});
}
void check_variable(uint offset, uint size, const char *name) { declare(arena(), {name, offset, size, 0}); }
}  // namespace msl
