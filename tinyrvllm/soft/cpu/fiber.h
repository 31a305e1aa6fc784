// Fibers: one stack for every thread of a threadgroup, and the switch from one to another.
//
// 1. An OS thread owns one "arena", 128 MiB of address space at a multiple of 128 MiB: a header (scheduler state and
//    threadgroup memory), then one 64 KiB stack for each of the 1024 threads that a threadgroup may have.
// 2. So the running GPU thread is plain arithmetic on the stack pointer, and needs no thread-local storage:
//        arena = sp & ~(128 MiB - 1)         thread = (sp & (128 MiB - 1)) / 64 KiB - 16
// 3. A switch is inline assembly with a clobber list: the compiler saves the registers that are live at that point and
//    no others. It pushes onto the stack, hence -mno-red-zone.
#pragma once

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef __UINTPTR_TYPE__ uptr;
typedef __SIZE_TYPE__ size_t;
#define MSL_INLINE static inline __attribute__((always_inline))
#define MSL_NOINLINE __attribute__((noinline))
#ifdef _WIN32
#define MSL_EXPORT extern "C" __attribute__((dllexport))
#else
#define MSL_EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace msl {
constexpr uptr STACK = 64 << 10, ARENA = 128 << 20, HEADER = 16;  // HEADER in units of STACK
constexpr uint MAX_THREADS = 1024, THREADGROUP_BYTES = 32768;     // Apple's limits

MSL_INLINE uptr stack_pointer() {
  uptr sp;
#if defined(__x86_64__)
  asm("movq %%rsp, %0" : "=r"(sp));
#elif defined(__aarch64__)
  asm("mov %0, sp" : "=r"(sp));
#else
#error "tinyrvllm.soft: no fibers for this processor (x86-64 and aarch64 only)"
#endif
  return sp;
}

// Saves this stack's place in *save and continues the stack `to`.
MSL_INLINE void switch_stack(void **save, void *to) {
#if defined(__x86_64__)
  asm volatile(
      "leaq 1f(%%rip), %%rax\n\t"
      "pushq %%rbp\n\tpushq %%rbx\n\tpushq %%rax\n\t"
      "movq %%rsp, (%%rdi)\n\t"
      "movq %%rsi, %%rsp\n\t"
      "popq %%rax\n\tjmpq *%%rax\n"
      "1:\tpopq %%rbx\n\tpopq %%rbp"
      : "+D"(save), "+S"(to)
      :
      : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2", "xmm3",
        "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15",
#ifdef __AVX512F__
        "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27",
        "xmm28", "xmm29", "xmm30", "xmm31", "k1", "k2", "k3", "k4", "k5", "k6", "k7",
#endif
        "memory", "cc");
#else
  register void **s asm("x0") = save;
  register void *t asm("x1") = to;
  asm volatile(
      "adr x2, 1f\n\t"
      "stp x29, x19, [sp, #-32]!\n\tstr x2, [sp, #16]\n\t"
      "mov x3, sp\n\tstr x3, [x0]\n\t"
      "mov sp, x1\n\t"
      "ldr x2, [sp, #16]\n\tldp x29, x19, [sp], #32\n\tbr x2\n"
      "1:"
      : "+r"(s), "+r"(t)
      :
      : "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16", "x17",
#if !defined(__APPLE__) && !defined(_WIN32)  // reserved by those two, an ordinary register on Linux
        "x18",
#endif
        "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x30", "v0", "v1", "v2", "v3", "v4", "v5", "v6",
        "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22",
        "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31", "memory", "cc");
#endif
}

// Lays out a fresh stack, whose top is `top`, so that the first switch to it calls `main`.
MSL_INLINE void *fresh_stack(char *top, void (*main)()) {
#if defined(__x86_64__)
  void **p = (void **)top;
  *--p = 0;
  *--p = (void *)main;
#else
  void **p = (void **)(top - 32);
  p[2] = (void *)main;
#endif
  return p;
}
}  // namespace msl
