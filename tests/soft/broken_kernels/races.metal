// Data races within a threadgroup and between threadgroups.
#include <metal_stdlib>
using namespace metal;

// run: grid=64 group=64 out:float[64]
kernel void no_barrier(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[i] = i;         // BUG: race
  out[i] = tile[63 - i];  // BUG: race
}

// run: grid=256 group=256 out:float[1]
kernel void tree_without_a_barrier(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup float sums[256];
  sums[i] = i;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint stride = 128; stride > 0; stride /= 2) {
    if (i < stride) sums[i] += sums[i + stride];  // BUG: race
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (i == 0) out[0] = sums[0];
}

// The next round's write meets this round's reads: the second barrier of the loop is missing.
// run: grid=64 group=64 a:float[256] out:float[64]
kernel void write_after_read(device const float *a [[buffer(0)]], device float *out [[buffer(1)]],
                             uint i [[thread_index_in_threadgroup]]) {
  threadgroup float tile[64];
  float sum = 0;
  for (uint k = 0; k < 4; k++) {
    tile[i] = a[k * 64 + i];  // BUG: race
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint j = 0; j < 64; j++) sum += tile[j];  // BUG: race
  }
  out[i] = sum;
}

// run: grid=64 group=64 out:float[64]
kernel void everyone_writes_one_place(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup float last;
  last = i;  // BUG: race
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = last;
}

// Thread 0 has read it too: the race is with the other readers.
// run: grid=64 group=64 out:float[64]
kernel void writer_was_a_reader(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup float value;
  if (i == 40) value = 3;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = value;          // BUG: race
  if (i == 0) value = 4;   // BUG: race
}

// run: grid=64 group=64 out:float[64]
kernel void device_memory_without_a_barrier(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  out[i] = i;                 // BUG: race
  out[i] += out[(i + 33) % 64];  // BUG: race
}

// The barrier orders threadgroup memory only, and the exchange goes through device memory.
// run: grid=64 group=64 between:float[64] out:float[64]
kernel void barrier_of_the_other_memory(device float *between [[buffer(0)]], device float *out [[buffer(1)]],
                                        uint i [[thread_index_in_threadgroup]]) {
  between[i] = i;  // BUG: race
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = between[63 - i];  // BUG: race
}

// run: grid=64 group=64 out:float[64]
kernel void barrier_of_no_memory(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[i] = i;  // BUG: race
  threadgroup_barrier(mem_flags::mem_none);
  out[i] = tile[63 - i];  // BUG: race
}

// Each threadgroup also writes the first element of the next one's.
// run: grid=128 group=32 out:float[132]
kernel void overlapping_tiles(device float *out [[buffer(0)]], uint i [[thread_position_in_grid]],
                              uint t [[thread_index_in_threadgroup]]) {
  out[i] = i;                    // BUG: race
  if (t == 31) out[i + 1] = -1;  // BUG: race
}

// A stencil in place reads what the neighbouring threadgroup replaces.
// run: grid=128 group=32 a:float[129]
kernel void stencil_in_place(device float *a [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  float right = a[i + 1];  // BUG: race
  threadgroup_barrier(mem_flags::mem_device);
  a[i] += right;  // BUG: race
}

// The same buffer is bound as input and output, one element apart.
// run: grid=64 group=32 from:float[65] to:from@1
kernel void shift_through_an_alias(device const float *from [[buffer(0)]], device float *to [[buffer(1)]],
                                   uint i [[thread_position_in_grid]]) {
  to[i] = from[i];  // BUG: race
}

// run: grid=64 group=32 bins:uint[8] values:uint[64]
kernel void histogram_without_atomics(device uint *bins [[buffer(0)]], device const uint *values [[buffer(1)]],
                                      uint i [[thread_position_in_grid]]) {
  bins[values[i] % 8] += 1;  // BUG: race
}

// run: grid=64 group=64 out:uint[64]
kernel void plain_read_of_an_atomic(device uint *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup uint count;
  if (i == 0) count = 0;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  atomic_fetch_add_explicit((threadgroup atomic_uint *)&count, 1u, memory_order_relaxed);  // BUG: race
  out[i] = count;  // BUG: race
}

// run: grid=64 group=64 count:uint[1] out:uint[64]
kernel void reset_beside_an_atomic(device atomic_uint *count [[buffer(0)]], device uint *out [[buffer(1)]],
                                   uint i [[thread_index_in_threadgroup]]) {
  if (i == 0) *(device uint *)count = 0;  // BUG: race
  out[i] = atomic_fetch_add_explicit(count, 1u, memory_order_relaxed);  // BUG: race
}

// The last threadgroup to finish adds up: but a relaxed counter orders nothing.
// run: grid=128 group=32 partial:float[4] finished:uint[1]=0 out:float[1]
kernel void last_one_adds_up(device float *partial [[buffer(0)]], device atomic_uint *finished [[buffer(1)]],
                             device float *out [[buffer(2)]], uint g [[threadgroup_position_in_grid]],
                             uint i [[thread_index_in_threadgroup]]) {
  if (i != 0) return;
  partial[g] = g;  // BUG: race
  if (atomic_fetch_add_explicit(finished, 1u, memory_order_relaxed) == 3)
    out[0] = partial[0] + partial[1] + partial[2] + partial[3];  // BUG: race
}

// Swapped in place: the partner reads what this thread writes.
// run: grid=64 group=64 a:float[64]
kernel void transpose_in_place(device float *a [[buffer(0)]], uint2 unused [[thread_position_in_grid]],
                               uint i [[thread_index_in_threadgroup]]) {
  uint row = i / 8, column = i % 8;
  a[row * 8 + column] = a[column * 8 + row];  // BUG: race
}

// Only one half word of the word is shared.
// run: grid=64 group=64 out:float[64]
kernel void half_a_word(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup half tile[65];
  tile[i + 1] = i;          // BUG: race
  if (i == 0) tile[2] = 5;  // BUG: race
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = tile[i + 1];
}
