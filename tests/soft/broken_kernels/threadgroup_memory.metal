// Accesses that leave a threadgroup variable, and reads of what nobody has written.
#include <metal_stdlib>
using namespace metal;

// run: grid=64 group=64 out:float[64]
kernel void tile_past_the_end(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[i + 1] = i;  // BUG: threadgroup-out-of-bounds
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = tile[i];
}

// run: grid=64 group=64 out:float[64]
kernel void tile_before_the_start(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[i] = i;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = tile[int(i) - 1];  // BUG: threadgroup-out-of-bounds
}

// The overrun of `first` would be `second` on a GPU.
// run: grid=64 group=64 out:float[64]
kernel void into_the_next_variable(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup float first[64], second[64];
  second[i] = 1;
  first[i] = 2;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = first[i + 8] + second[i];  // BUG: threadgroup-out-of-bounds
}

// run: grid=64 group=64 out:float[64]
kernel void rows_of_a_padded_tile(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup float tile[8][9];
  tile[i % 8][i / 8] = i;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = tile[i / 8 + 1][i % 8];  // BUG: threadgroup-out-of-bounds
}

// The host gives 128 bytes: one float for each of 32 threads, but there are 64.
// run: grid=64 group=64 out:float[64] scratch:threadgroup[128]
kernel void argument_too_short(device float *out [[buffer(0)]], threadgroup float *scratch [[threadgroup(0)]],
                               uint i [[thread_index_in_threadgroup]]) {
  scratch[i] = i;  // BUG: threadgroup-out-of-bounds
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = scratch[i];
}

// run: grid=64 group=64 out:float[64]
kernel void half_of_it_written(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup float tile[64];
  if (i < 32) tile[i] = i;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = tile[i];  // BUG: uninitialised
}

// Four simdgroups write one sum each; eight are read.
// run: grid=128 group=128 out:float[1]
kernel void too_many_partial_sums(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]],
                                  uint lane [[thread_index_in_simdgroup]], uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup float sums[8];
  float s = simd_sum(float(i));
  if (lane == 0) sums[sg] = s;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (i == 0) {
    float total = 0;
    for (int k = 0; k < 8; k++) total += sums[k];  // BUG: uninitialised
    out[0] = total;
  }
}

// run: grid=64 group=64 out:uint[64]
kernel void counter_without_a_start(device uint *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup atomic_uint count;
  out[i] = atomic_fetch_add_explicit(&count, 1u, memory_order_relaxed);  // BUG: uninitialised
}

// What the previous threadgroup left behind is not there.
// run: grid=128 group=32 out:float[128]
kernel void left_by_another_threadgroup(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]],
                                        uint g [[threadgroup_position_in_grid]]) {
  threadgroup float table[32];
  if (g == 0) table[i] = i;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[g * 32 + i] = table[i];  // BUG: uninitialised
}
