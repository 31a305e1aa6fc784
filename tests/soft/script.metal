// Runs a script, for test_races.py: what each thread does in each step is data.
#include <metal_stdlib>
using namespace metal;

enum : uint { NOTHING, READ, WRITE, ATOMIC_READ, ATOMIC_ADD, BARRIER, SIMDGROUP_BARRIER };

template <typename Byte, typename Half, typename Word, typename Atomic>
static uint access(Byte bytes, Half halves, Word words, Atomic atomics, uint action, uint at, uint size) {
  if (action == ATOMIC_READ) return atomic_load_explicit(atomics + at / 4, memory_order_relaxed);
  if (action == ATOMIC_ADD) return atomic_fetch_add_explicit(atomics + at / 4, 1u, memory_order_relaxed);
  if (action == WRITE) {
    if (size == 1) bytes[at] = 1;
    else if (size == 2) halves[at / 2] = 1;
    else words[at / 4] = 1;
    return 0;
  }
  return size == 1 ? bytes[at] : size == 2 ? halves[at / 2] : words[at / 4];
}

// script: [threadgroups, steps, threads] words: action | size << 4 | byte << 8 | in threadgroup memory << 16
kernel void interpret(device const uint *script [[buffer(0)]], device uint *memory [[buffer(1)]],
                      constant uint &steps [[buffer(2)]], device uint *sums [[buffer(3)]],
                      uint g [[threadgroup_position_in_grid]], uint i [[thread_index_in_threadgroup]],
                      uint threads [[threads_per_threadgroup]]) {
  threadgroup uint shared[4];
  if (i < 4) shared[i] = 0;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint sum = 0;
  for (uint step = 0; step < steps; step++) {
    uint word = script[(g * steps + step) * threads + i];
    uint action = word & 15, size = word >> 4 & 15, at = word >> 8 & 255;
    bool in_threadgroup = word >> 16 & 1;
    if (action == BARRIER && in_threadgroup) threadgroup_barrier(mem_flags::mem_threadgroup);
    else if (action == BARRIER) threadgroup_barrier(mem_flags::mem_device);
    else if (action == SIMDGROUP_BARRIER && in_threadgroup) simdgroup_barrier(mem_flags::mem_threadgroup);
    else if (action == SIMDGROUP_BARRIER) simdgroup_barrier(mem_flags::mem_device);
    else if (action != NOTHING && in_threadgroup)
      sum += access((threadgroup uchar *)shared, (threadgroup ushort *)shared, (threadgroup uint *)shared,
                    (threadgroup atomic_uint *)shared, action, at, size);
    else if (action != NOTHING)
      sum += access((device uchar *)memory, (device ushort *)memory, memory, (device atomic_uint *)memory, action, at,
                    size);
  }
  sums[g * threads + i] = sum;
}
