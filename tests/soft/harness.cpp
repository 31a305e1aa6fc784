// A program of its own, without a C library, that runs one kernel: for processors and systems that the tests' Python does
// not run on. It reads a launch from standard input, and writes the buffers back to standard output.
#include "runtime.h"

struct Launch {
  msl::U3 grid_threads, groups, group;
  uint level, buffers, threadgroup_bytes;
};

#ifdef _WIN32
extern "C" __declspec(dllimport) void *GetStdHandle(uint);
extern "C" __declspec(dllimport) int ReadFile(void *, void *, uint, uint *, void *);
extern "C" __declspec(dllimport) int WriteFile(void *, const void *, uint, uint *, void *);
extern "C" __declspec(dllimport) void *VirtualAlloc(void *, size_t, uint, uint);
extern "C" __declspec(dllimport) void ExitProcess(uint);
static uint read(void *p, uint n) {
  uint done = 0;
  ReadFile(GetStdHandle(-10u), p, n, &done, 0);
  return done;
}
static uint write(const void *p, uint n) {
  uint done = 0;
  WriteFile(GetStdHandle(-11u), p, n, &done, 0);
  return done;
}
static char *memory(size_t n) { return (char *)VirtualAlloc(0, n, 0x3000, 4); }
static void leave() { ExitProcess(0); }
#else
// Linux system calls, by their numbers on each processor.
#if defined(__aarch64__)
enum { READ = 63, WRITE = 64, MMAP = 222, EXIT = 93 };
static long call(long number, long a, long b, long c, long d = 0, long e = 0, long f = 0) {
  register long x8 asm("x8") = number, x0 asm("x0") = a, x1 asm("x1") = b, x2 asm("x2") = c;
  register long x3 asm("x3") = d, x4 asm("x4") = e, x5 asm("x5") = f;
  asm volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
  return x0;
}
#else
enum { READ = 0, WRITE = 1, MMAP = 9, EXIT = 60 };
static long call(long number, long a, long b, long c, long d = 0, long e = 0, long f = 0) {
  register long r10 asm("r10") = d, r8 asm("r8") = e, r9 asm("r9") = f;
  asm volatile("syscall" : "+a"(number) : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
  return number;
}
#endif
static uint read(void *p, uint n) { return (uint)call(READ, 0, (long)p, n); }
static uint write(const void *p, uint n) { return (uint)call(WRITE, 1, (long)p, n); }
static char *memory(size_t n) { return (char *)call(MMAP, 0, (long)n, 3, 0x22, -1); }
static void leave() { call(EXIT, 0, 0, 0); }

// What engine.cpp and the compiler call. One thread needs no locks.
extern "C" {
int pthread_mutex_init(void *, const void *) { return 0; }
int pthread_mutex_lock(void *) { return 0; }
int pthread_mutex_unlock(void *) { return 0; }
int pthread_cond_init(void *, const void *) { return 0; }
int pthread_cond_wait(void *, void *) { return 0; }
int pthread_cond_broadcast(void *) { return 0; }
int sched_yield(void) { return 0; }
int printf(const char *, ...) { return 0; }
int fflush(void *) { return 0; }
void *memcpy(void *to, const void *from, size_t n) {
  for (size_t i = 0; i < n; i++) ((volatile char *)to)[i] = ((const char *)from)[i];
  return to;
}
void *memset(void *to, int value, size_t n) {
  for (size_t i = 0; i < n; i++) ((volatile char *)to)[i] = (char)value;
  return to;
}
}
#endif

static void read_all(void *p, uint n) {
  for (uint done = 0; done < n;) done += read((char *)p + done, n - done);
}
static void write_all(const void *p, uint n) {
  for (uint done = 0; done < n;) done += write((const char *)p + done, n - done);
}

namespace msl {
struct Pool;
}
extern "C" uint msl_pool_size();
extern "C" void msl_pool_init(msl::Pool *);
extern "C" void msl_run(msl::Pool *, const msl::Dispatch *const *, uint, uint, msl::Arena *);
extern "C" void msl_lead(const msl::Dispatch *, msl::Arena *, uint);
extern "C" void msl_rest(const msl::Dispatch *, msl::Arena *, uint);

static void run() {
  Launch launch;
  read_all(&launch, sizeof launch);
  static msl::Dispatch d;
  d.entry = msl_lead;
  d.entry_rest = TWO_SIDES ? msl_rest : msl_lead;
  d.grid_threads = launch.grid_threads;
  d.groups = launch.groups;
  d.group = launch.group;
  d.level = launch.level;
  d.tg_offset[0] = msl::THREADGROUP_BYTES;
  d.tg_length[0] = launch.threadgroup_bytes;
  for (uint i = 0; i < launch.buffers; i++) {
    uint bytes;
    read_all(&bytes, sizeof bytes);
    d.buffer[i] = memory(bytes);
    d.length[i] = bytes;
    read_all(d.buffer[i], bytes);
  }
  const msl::Dispatch *list[] = {&d};
  char *arena = memory(2 * msl::ARENA);
  arena = (char *)(((uptr)arena + msl::ARENA - 1) & ~(msl::ARENA - 1));
  msl::Pool *pool = (msl::Pool *)memory(msl_pool_size());
  msl_pool_init(pool);
  msl_run(pool, list, 1, 0, (msl::Arena *)arena);
  for (uint i = 0; i < launch.buffers; i++) write_all(d.buffer[i], (uint)d.length[i]);
}

extern "C" void start() {
  run();
  leave();
}
