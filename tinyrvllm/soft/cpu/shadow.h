// The checking mode's memory of who touched which byte, and its rule for when two accesses race.
//
// Two accesses of one byte by different threads, at least one of them a write and not both atomic, race unless
// something orders them:
//   - within a threadgroup: a threadgroup_barrier in between whose flags name that memory;
//   - within a simdgroup: also such a simdgroup_barrier (lanes are not in lockstep by rule);
//   - between threadgroups of one dispatch: nothing does.
// Barriers are counted, so "a barrier in between" is "another count" (tick): no vector clocks.
#pragma once
#include "runtime.h"
extern "C" void *calloc(size_t, size_t);
extern "C" void free(void *);

namespace msl {
// What an access does; instrument.py has the same bits. MATRIX: done by a simdgroup as a whole; BLOCK: copies a struct,
// with its padding; THREE: only three quarters of what is read are used.
enum : uint { READ = 1, WRITE = 2, ATOMIC = 4, MATRIX = 8, BLOCK = 16, THREE = 32 };
constexpr uint SIMDGROUP = MAX_THREADS;                // thread number SIMDGROUP + k is "some lane of simdgroup k"

struct Access {
  uint group;                                          // its threadgroup + 1; 0: there was no access
  uint tick, site;                                     // barriers before it; where in the source
  uint thread : 15, atomic : 1, simd_tick : 16;
};
MSL_INLINE uint simdgroup_of(const Access &a) { return a.thread < SIMDGROUP ? a.thread / 32 : a.thread - SIMDGROUP; }
MSL_INLINE bool same_simdgroup(const Access &a, const Access &b) {
  return a.group == b.group && simdgroup_of(a) == simdgroup_of(b);
}
MSL_INLINE bool same_thread(const Access &a, const Access &b) { return a.group == b.group && a.thread == b.thread; }
MSL_INLINE bool barrier_between(const Access &then, const Access &now) {
  return then.group == now.group &&
         (then.tick != now.tick || (same_simdgroup(then, now) && then.simd_tick != now.simd_tick));
}
MSL_INLINE bool conflict(const Access &then, const Access &now) {
  return then.group && !same_thread(then, now) && !barrier_between(then, now) && !(then.atomic && now.atomic);
}

// Two accesses stand for any number: whoever comes next conflicts with one of the two if with any. For that they are of
// different threadgroups if there were such, else of different simdgroups, else of different threads.
struct Pair {
  Access a, b;
  const Access *conflicting(const Access &now) const { return conflict(a, now) ? &a : conflict(b, now) ? &b : nullptr; }
  void add(const Access &now) {
    if (!a.group || same_thread(a, now) || barrier_between(a, now)) a = now;
    else if (!b.group || same_thread(b, now) || barrier_between(b, now)) b = now;
    else if (a.group == b.group ? now.group != a.group || (same_simdgroup(a, b) && !same_simdgroup(a, now)) : false) b = now;
  }
};
struct Cell {
  uint epoch;                                          // threadgroup memory is used anew: cells of another epoch are empty
  Access write;                                        // the last plain write: it makes what was before it irrelevant
  Pair reads, atomic_reads, atomic_writes;             // since then
  bool written() const { return write.group || atomic_writes.a.group; }
  const Access *conflicting(const Access &now, uint what) const {
    if (conflict(write, now)) return &write;
    const Access *other = atomic_writes.conflicting(now);
    if (!other && what & WRITE) other = reads.conflicting(now);
    if (!other && what & WRITE) other = atomic_reads.conflicting(now);
    return other;
  }
  void record(const Access &now, uint what) {
    if (what & ATOMIC) (what & WRITE ? atomic_writes : atomic_reads).add(now);
    else if (what & WRITE) *this = {epoch, now, {}, {}, {}};
    else reads.add(now);
  }
};

// The cells of 4 KiB of memory: one for each word; one for each half word or byte once something narrower was touched.
struct Page {
  static constexpr uint BYTES = 4096;
  uint lock, shift;                                    // a cell covers 1 << shift bytes
  Cell *cells;
  void acquire() { while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE)) {} }
  void release() { __atomic_store_n(&lock, 0, __ATOMIC_RELEASE); }
  void fit(uint offset, uint size) {
    uint want = (offset | size) & 1 ? 0 : (offset | size) & 2 ? 1 : 2;
    if (cells && shift <= want) return;
    Cell *finer = (Cell *)calloc(BYTES >> want, sizeof(Cell));
    if (cells) for (uint i = 0; i < BYTES >> want; i++) finer[i] = cells[i >> (shift - want)];
    free(cells);
    cells = finer; shift = want;
  }
};
struct Finding { bool race, uninitialised; uint offset; Access other; };

// Records an access within one page; tells whether it races (and with whom) or reads what nobody has written.
static Finding touch(Page &page, uint epoch, uint offset, uint size, uint what, const Access &now) {
  Finding f = {};
  uint empty = 0, cells = 0;
  page.acquire();
  page.fit(offset, size);
  for (uint i = offset >> page.shift; i < (offset + size) >> page.shift; i++, cells++) {
    Cell &cell = page.cells[i];
    if (cell.epoch != epoch) cell = {epoch, {}, {}, {}, {}};
    if (!f.race) if (const Access *other = cell.conflicting(now, what)) f = {true, false, i << page.shift, *other};
    if (what & READ && !cell.written() && !empty++ && !f.race) f.offset = i << page.shift;
    cell.record(now, what);
  }
  page.release();
  f.uninitialised = what & BLOCK ? empty == cells : empty;   // a struct's padding may well be unwritten
  return f;
}
}  // namespace msl
