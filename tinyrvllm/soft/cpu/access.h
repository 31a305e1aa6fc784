// The checking mode's checks of memory. instrument.py puts a call of msl_access before every load and store of the
// user's code. Part of every checked kernel's library.
#pragma once
#include "check.h"
#define MSL_HOOK extern "C" __attribute__((visibility("hidden")))

namespace msl {
struct Constant { const char *start; ulong size; };    // a constant of program scope; the lists end with null
}
extern "C" __attribute__((visibility("hidden"))) const msl::Constant msl_constants_lead[], msl_constants_rest[];

namespace msl {
MSL_INLINE ulong smaller(ulong a, ulong b) { return a < b ? a : b; }

// The variable that an offset lies in, or else the nearest.
static Variable nearest(const Checker *c, ulong offset) {
  Variable best = nothing;
  ulong least = ~0ul;
  for (uint i = 0; i < c->variable_count; i++) {
    const Variable &v = c->variables[i];
    ulong distance = offset < v.offset ? v.offset - offset : offset < v.offset + v.size ? 0 : offset - v.offset - v.size + 1;
    if (distance < least) { least = distance; best = v; }
  }
  return best;
}
static void log_access(Arena *a, bool shared, ulong address, uint size, uint what, Party who) {
  Watch *w = a->d->watch;
  ulong i = __atomic_fetch_add(&w->log_count, 1, __ATOMIC_RELAXED);
  if (i >= w->log_most) return;
  Variable v = shared ? nearest(a->checker, address) : nothing;
  w->log[i] = {shared ? address - v.offset : address, what & THREE ? size - size / 4 : size, what & 0xff, a->checker->barriers, who, v};
}
static void threadgroup_access(Arena *a, ulong o, uint size, uint what, Party who, const Access &now) {
  Checker *c = a->checker;
  for (uint i = 0; i < size; i++) if (o + i >= THREADGROUP_SPACE || c->declared[o + i] != c->epoch) {
    report(a, THREADGROUP_OUT_OF_BOUNDS, o, size, who, nobody, nearest(c, o));
    abandon(a);
  }
  if (what & THREE) size -= size / 4;
  while (size) {                                       // page by page
    uint at = o % Page::BYTES, n = (uint)smaller(size, Page::BYTES - at);
    Finding f = touch(c->pages[o / Page::BYTES], c->epoch, at, n, what, now);
    ulong where = o - at + f.offset;
    if (f.race) report(a, RACE, where, n, who, {f.other.thread, c->group, f.other.site}, nearest(c, o));
    else if (f.uninitialised) report(a, UNINITIALISED, where, n, who, nobody, nearest(c, o));
    o += n; size -= n;
  }
}

static void mark(uchar *bits, ulong from, ulong size) {
  for (ulong i = from, end = from + size; i < end;) {
    uint n = (uint)smaller(8 - i % 8, end - i);
    __atomic_fetch_or(&bits[i / 8], (uchar)(((1u << n) - 1) << i % 8), __ATOMIC_RELAXED);
    i += n;
  }
}
static bool is_constant(const Constant *list, ulong p, ulong size) {
  for (; list->start; list++) if (p >= (ulong)list->start && p + size <= (ulong)list->start + list->size) return true;
  return false;
}
static void device_access(Arena *a, ulong p, ulong size, uint what, Party who, const Access &now) {
  const Watch *w = a->d->watch;
  for (uint i = 0; i < w->region_count; i++) {
    const Region &r = w->regions[i];
    if (p < r.low || p + size > r.high) continue;
    if (what & READ) mark(r.reads, p - r.low, size);
    if (what & WRITE) mark(r.writes, p - r.low, size);
    if (!r.pages) return;
    if (what & THREE) size -= size / 4;
    while (size) {
      uint at = p % Page::BYTES, n = (uint)smaller(size, Page::BYTES - at);
      Finding f = touch(r.pages[p / Page::BYTES - r.low / Page::BYTES], 0, at, n, what, now);
      if (f.race) report(a, RACE, p - at + f.offset, n, who, {f.other.thread, f.other.group - 1, f.other.site});
      p += n; size -= n;
    }
    return;
  }
  bool dispatch = p - (ulong)a->d < sizeof(Dispatch);  // a kernel's own arguments
  if (dispatch || is_constant(msl_constants_lead, p, size) || is_constant(msl_constants_rest, p, size)) return;
  report(a, OUT_OF_BOUNDS, p, (uint)size, who);
  abandon(a);
}
}  // namespace msl

// An access of `size` bytes at p. what: READ, WRITE ... | alignment << 8. site: see instrument.py.
MSL_HOOK void msl_access(ulong p, ulong size, uint what, uint site) {
  using namespace msl;
  Arena *a = arena();
  ulong o = p - (ulong)threadgroup_memory(a);
  bool shared = o < THREADGROUP_SPACE;
  if (!shared && p - (ulong)a < ARENA) return;         // the thread's own stack, or the scheduler's state
  Checker *c = a->checker;
  uint me = thread_index(), simdgroup = me / 32, space = shared ? THREADGROUP : DEVICE, align = what >> 8;
  uint thread = what & MATRIX ? SIMDGROUP + simdgroup : me;
  c->last_site[me] = site;
  Party who = {thread, c->group, site};
  Access now = {shared ? c->epoch : c->group + 1, c->tick[space], site, thread, (what & ATOMIC) != 0, c->simd_tick[space][simdgroup]};
  if (a->d->watch->log) log_access(a, shared, shared ? o : p, (uint)size, what, who);
  if (p & (align - 1)) {
    report(a, MISALIGNED, shared ? o : p, (uint)size, who, nobody, shared ? nearest(c, o) : nothing);
    abandon(a);
  }
  if (shared) threadgroup_access(a, o, (uint)size, what & 0xff, who, now);
  else device_access(a, p, size, what & 0xff, who, now);
}
// The same for a struct that is copied; compilers make such calls for nothing, too.
MSL_HOOK void msl_access_block(const void *p, ulong size, uint what, uint site) {
  if (size) msl_access((ulong)p, size, what, site);
}
// An index is outside an array of the thread's own, or outside a constant of program scope.
MSL_HOOK void msl_local_bounds(uint site) {
  using namespace msl;
  Arena *a = arena();
  report(a, LOCAL_OUT_OF_BOUNDS, 0, 0, {thread_index(), a->checker->group, site});
  abandon(a);
}
