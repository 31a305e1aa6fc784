// threadgroup_barriers that not all threads of a threadgroup reach.
#include <metal_stdlib>
using namespace metal;

// run: grid=64 group=64 out:float[64]
kernel void barrier_in_a_branch(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  out[i] = i;
  if (i < 40) threadgroup_barrier(mem_flags::mem_device);  // BUG: early-return
}

// run: grid=64 group=64 out:float[64]
kernel void a_barrier_on_each_side(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  if (i < 7)
    threadgroup_barrier(mem_flags::mem_device);  // BUG: barrier-divergence
  else
    threadgroup_barrier(mem_flags::mem_device);  // BUG: barrier-divergence
  out[i] = i;
}

// The usual guard at the edge of the grid, before a barrier.
// run: grid=128 group=64 n:uint=100 out:float[128]
kernel void return_before_a_barrier(constant uint &n [[buffer(0)]], device float *out [[buffer(1)]],
                                    uint i [[thread_position_in_grid]], uint t [[thread_index_in_threadgroup]]) {
  threadgroup float tile[64];
  if (i >= n) return;
  tile[t] = i;
  threadgroup_barrier(mem_flags::mem_threadgroup);  // BUG: early-return
  out[i] = tile[t];
}

// run: grid=64 group=64 out:float[64]
kernel void rounds_differ(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  out[i] = 0;
  for (uint k = 0; k <= i / 32; k++) {
    threadgroup_barrier(mem_flags::mem_device);  // BUG: barrier-divergence
    out[i] += k;
  }
  threadgroup_barrier(mem_flags::mem_device);  // BUG: barrier-divergence
}

// run: grid=64 group=64 a:float[64] out:float[64]
kernel void leaves_the_loop(device const float *a [[buffer(0)]], device float *out [[buffer(1)]],
                            uint i [[thread_index_in_threadgroup]]) {
  for (uint k = 0; k < 4; k++) {
    if (a[i] > 60) return;
    threadgroup_barrier(mem_flags::mem_device);  // BUG: early-return
    out[i] = k;
  }
}
