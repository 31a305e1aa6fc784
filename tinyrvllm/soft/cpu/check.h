// The checking mode.  User code is compiled with -fsanitize=thread, whose calls before every load and store come here
// instead of to ThreadSanitizer: bounds of device buffers, races and uninitialised reads in threadgroup memory.
#pragma once
#define HOOK extern "C" __attribute__((visibility("hidden"), no_sanitize("thread")))
struct Report { uint kind, count; ulong addr, pc; uint tid, other; };
enum { OUT_OF_BOUNDS = 1, RACE, UNINITIALISED, BARRIER_DIVERGENCE, SIMD_DIVERGENCE, TG_OUT_OF_BOUNDS };
struct Reports { uint count, pad; Report list[256]; };   // allocated by check.py, one for a run
extern "C" char __ehdr_start, _end;
namespace msl {
struct Cell { uint declared, group, wtick, rtick; ushort writer, reader; bool written, many; uint wsimd, rsimd; };
struct Shadow { uint group, tick, simd_tick[32], total; Cell cell[2 * THREADGROUP_BYTES]; };
#define shadow ((Shadow *)arena()->check)              // one per OS thread, like the arena
static void report(uint kind, ulong addr, ulong pc, uint tid, uint other) {
  Reports *r = (Reports *)arena()->d->reports;
  for (uint i = 0; i < r->count && i < 256; i++) if (r->list[i].kind == kind && r->list[i].pc == pc) { r->list[i].count++; return; }
  uint i = __atomic_fetch_add(&r->count, 1, __ATOMIC_RELAXED);
  if (i < 256) r->list[i] = {kind, 1, addr, pc, tid, other};
}
extern "C" void *calloc(size_t, size_t);
static void check_group(Arena *a, const Dispatch *d, U3 id) {
  if (!a->check) a->check = calloc(1, sizeof(Shadow));
  Shadow *shadow_ = (Shadow *)a->check;
#undef shadow
#define shadow shadow_
  shadow->group++; shadow->tick++;
  shadow->total = d->group.x * d->group.y * d->group.z;
  for (uint i = 0; i < 31; i++)
    for (uint o = d->tg_offset[i], n = 0; n < d->tg_length[i]; n++) shadow->cell[o + n].declared = shadow->group;
  a->rng = d->order ? d->order * 2654435761u + shadow->group : 0;
#undef shadow
#define shadow ((Shadow *)arena()->check)
}
uint pick_lane(Arena *a, uint mask) {
  if (!a->rng) return (uint)__builtin_ctz(mask);
  a->rng ^= a->rng << 13; a->rng ^= a->rng >> 17; a->rng ^= a->rng << 5;
  for (uint n = a->rng % (uint)__builtin_popcount(mask); n; n--) mask &= mask - 1;
  return (uint)__builtin_ctz(mask);
}
void check_diverged(const char *, uint tid) { report(BARRIER_DIVERGENCE, 0, 0, tid, 0); }
void check_barrier(Arena *a) {
  uint site = 0;
  for (uint k = 0; k < a->nsimd; k++) for (uint l = 0; l < 32; l++) if (a->simd[k].bar >> l & 1) {
    if (!site) site = a->simd[k].site[l];
    else if (site != a->simd[k].site[l]) { report(BARRIER_DIVERGENCE, site, a->simd[k].site[l], k * 32 + l, 0); }
  }
  if (a->nalive != shadow->total) report(BARRIER_DIVERGENCE, site, 1, a->nalive, shadow->total);
  shadow->tick++;
}
void check_simd(Arena *, Simd *s) { report(SIMD_DIVERGENCE, s->wait, s->site[__builtin_ctz(s->wait)], 0, 0); }
void check_simd_barrier(uint me) { shadow->simd_tick[me / 32]++; }

static void declare(uint o, uint n) {
  if (n && shadow->cell[o].declared != shadow->group) for (uint i = 0; i < n; i++) shadow->cell[o + i].declared = shadow->group;
}
static void access(uptr p, uint size, bool write, ulong pc) {
  Arena *a = arena();
  uptr off = p - (uptr)a;
  if (off < ARENA) {
    uptr o = p - (uptr)a->memory;
    if (o >= 2 * THREADGROUP_BYTES) return;                       // this thread's stack, or the scheduler's own state
    uint me = thread_index(); Shadow *h = shadow;
    for (uint i = 0; i < size; i++) {
      Cell &c = h->cell[o + i];
      if (c.declared != h->group) { report(TG_OUT_OF_BOUNDS, o, pc, me, write); return; }
      if (c.group != h->group) c = {c.declared, h->group, 0, 0, 0, 0, false, false, 0, 0};
      auto unordered = [&](uint tick, uint who, uint simd_tick) {
        return tick == h->tick && who != me && !(who / 32 == me / 32 && simd_tick != h->simd_tick[me / 32]); };
      if (c.written && unordered(c.wtick, c.writer, c.wsimd)) { report(RACE, o, pc, me, c.writer); return; }
      if (write) {
        if (c.rtick == h->tick && c.rtick && (unordered(c.rtick, c.reader, c.rsimd) || c.many)) { report(RACE, o, pc, me, c.reader); return; }
        c.written = true; c.wtick = h->tick; c.writer = (ushort)me; c.wsimd = h->simd_tick[me / 32];
      } else {
        if (!c.written) { report(UNINITIALISED, o, pc, me, 0); return; }
        c.many = c.rtick == h->tick && (c.many || (c.reader / 32 != me / 32));
        c.rtick = h->tick; c.reader = (ushort)me; c.rsimd = h->simd_tick[me / 32];
      }
    }
    return;
  }
  const Dispatch *d = a->d;
  if (p - (uptr)d < sizeof(Dispatch)) return;
  for (uint i = 0; i < 31; i++) if (p - (uptr)d->buffer[i] < d->length[i] && p - (uptr)d->buffer[i] + size <= d->length[i]) return;
  if (p >= (uptr)&__ehdr_start && p < (uptr)&_end) return;   // program-scope constants
  report(OUT_OF_BOUNDS, p, pc, thread_index() + a->first, write);
  a->started = 0; a->nalive = 0;                        // drop this threadgroup; its stacks are set up again for the next
  switch_stack(&a->sp[thread_index()], a->scheduler_sp);
}
}  // namespace msl
#define PC (ulong)__builtin_return_address(0) - (ulong)&__ehdr_start
#define BOTH(n) \
  HOOK void __tsan_read##n(uptr p) { msl::access(p, n, false, PC); } HOOK void __tsan_write##n(uptr p) { msl::access(p, n, true, PC); } \
  HOOK void __tsan_unaligned_read##n(uptr p) { msl::access(p, n, false, PC); } HOOK void __tsan_unaligned_write##n(uptr p) { msl::access(p, n, true, PC); }
BOTH(1) BOTH(2) BOTH(4) BOTH(8) BOTH(16)
HOOK void __tsan_init() {}
HOOK void __tsan_func_entry(void *) {}
HOOK void __tsan_func_exit() {}
HOOK void __tsan_vptr_update(void **, void *) {}
extern "C" void *memcpy(void *, const void *, size_t); extern "C" void *memset(void *, int, size_t); extern "C" void *memmove(void *, const void *, size_t);
HOOK void *__tsan_memcpy(uptr d, uptr s, size_t n) { msl::access(s, n, false, PC); msl::access(d, n, true, PC); return memcpy((void *)d, (void *)s, n); }
HOOK void *__tsan_memmove(uptr d, uptr s, size_t n) { msl::access(s, n, false, PC); msl::access(d, n, true, PC); return memmove((void *)d, (void *)s, n); }
HOOK void *__tsan_memset(uptr d, int v, size_t n) { msl::access(d, n, true, PC); return memset((void *)d, v, n); }
HOOK void msl_check_access(const void *p, uint n, bool w) { msl::access((uptr)p, n, w, PC); }
HOOK void msl_check_var(uint o, uint n) { msl::declare(o, n); }
