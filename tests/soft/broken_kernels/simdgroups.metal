// Lanes of one simdgroup: missing and wrong barriers, matrices, shuffles, divergence.
#include <metal_stdlib>
using namespace metal;

// Lanes do not run in lockstep by rule.
// run: grid=32 group=32 out:float[32]
kernel void no_simdgroup_barrier(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup float tile[32];
  tile[i] = i;  // BUG: race
  float shared = simd_sum(1.0f);
  out[i] = tile[31 - i] + shared;  // BUG: race
}

// run: grid=64 group=64 out:float[64]
kernel void simdgroup_barrier_is_not_enough(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup float tile[64];
  tile[i] = i;  // BUG: race
  simdgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = tile[63 - i];  // BUG: race
}

// run: grid=32 group=32 a:half[64] out:float[64]
kernel void matrix_before_the_barrier(device const half *a [[buffer(0)]], device float *out [[buffer(1)]],
                                      uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float tile[64];
  for (uint k = lane; k < 64; k += 32) tile[k] = a[k];  // BUG: race
  simdgroup_float8x8 m;
  simdgroup_load(m, tile, 8);  // BUG: race
  simdgroup_store(m, out, 8);
}

// run: grid=32 group=32 a:float[64] out:float[64]
kernel void lanes_before_the_matrix(device const float *a [[buffer(0)]], device float *out [[buffer(1)]],
                                    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float tile[64];
  simdgroup_float8x8 m;
  simdgroup_load(m, a, 8);
  simdgroup_store(m, tile, 8);  // BUG: race
  for (uint k = lane; k < 64; k += 32) out[k] = tile[k];  // BUG: race
}

// The tile is filled again while the matrix unit may still read it.
// run: grid=32 group=32 a:float[256] out:float[64]
kernel void tile_refilled_too_early(device const float *a [[buffer(0)]], device float *out [[buffer(1)]],
                                    uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float tile[64];
  simdgroup_float8x8 sum(0), m;
  for (uint k = 0; k < 4; k++) {
    for (uint j = lane; j < 64; j += 32) tile[j] = a[k * 64 + j];  // BUG: race
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_load(m, tile, 8);  // BUG: race
    simdgroup_multiply_accumulate(sum, m, m, sum);
  }
  simdgroup_store(sum, out, 8);
}

// run: grid=32 group=32 out:float[32]
kernel void barrier_for_some_lanes(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  if (i < 20) simdgroup_barrier(mem_flags::mem_device);  // BUG: simd-divergence
  out[i] = simd_sum(1.0f);
}

// run: grid=32 group=32 n:uint=30 out:float[32]
kernel void barrier_after_a_return(constant uint &n [[buffer(0)]], device float *out [[buffer(1)]],
                                   uint i [[thread_index_in_threadgroup]]) {
  if (i >= n) return;
  out[i] = i;
  simdgroup_barrier(mem_flags::mem_device);  // BUG: simd-return
  out[i] += out[(i + 1) % n];
}

// run: grid=32 group=32 out:float[32]
kernel void shuffle_from_an_inactive_lane(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  float v = i;
  if (i % 2 == 0) v = simd_shuffle(v, ushort(i + 1));  // BUG: inactive-lane
  out[i] = v;
}

// run: grid=50 group=50 out:float[50]
kernel void shuffle_past_the_last_lane(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  out[i] = simd_shuffle_xor(float(i), ushort(16));  // BUG: inactive-lane
}

// Defined, and seldom meant: the sum of the odd lanes.
// run: grid=32 group=32 out:float[32]
kernel void sum_of_some_lanes(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  if (i & 1) out[i] = simd_sum(float(i));  // BUG: simd-partial
}

// run: grid=32 group=32 a:float[64] out:float[64]
kernel void matrix_for_some_lanes(device const float *a [[buffer(0)]], device float *out [[buffer(1)]],
                                  uint lane [[thread_index_in_simdgroup]]) {
  simdgroup_float8x8 m, square(0);
  simdgroup_load(m, a, 8);
  if (lane < 16) simdgroup_multiply_accumulate(square, m, m, square);  // BUG: simd-divergence
  simdgroup_store(square, out, 8);
}
