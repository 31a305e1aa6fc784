// A thread's own arrays, constants of program scope, and addresses that are no multiple of what they must be.
#include <metal_stdlib>
using namespace metal;

// run: grid=64 group=64 a:float[64] out:float[64]
kernel void own_array(device const float *a [[buffer(0)]], device float *out [[buffer(1)]],
                      uint i [[thread_position_in_grid]]) {
  float best[8];
  for (uint k = 0; k < 8; k++) best[k] = a[(i + k) % 64];
  best[i % 9] = 0;  // BUG: local-out-of-bounds
  float sum = 0;
  for (uint k = 0; k < 8; k++) sum += best[k];
  out[i] = sum;
}

constant float table[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
// run: grid=64 group=64 out:float[64]
kernel void constant_table(device float *out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = table[i / 3];  // BUG: local-out-of-bounds
}

static float pick(constant float *values, uint i) {
  return values[i];  // BUG: local-out-of-bounds
}
// run: grid=64 group=64 out:float[64]
kernel void constant_table_through_a_pointer(device float *out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  out[i] = pick(table, i / 3);
}

// run: grid=8 group=8 a:float[40] out:float[8]
kernel void misaligned_float4(device const float *a [[buffer(0)]], device float *out [[buffer(1)]],
                              uint i [[thread_position_in_grid]]) {
  float4 v = *(device const float4 *)(a + i);  // BUG: misaligned
  out[i] = v.x + v.w;
}

// run: grid=8 group=8 a:half[40] out:half[40]
kernel void misaligned_half2(device const half *a [[buffer(0)]], device half *out [[buffer(1)]],
                             uint i [[thread_position_in_grid]]) {
  *(device half2 *)(out + 2 * i + 1) = half2(a[2 * i], a[2 * i + 1]);  // BUG: misaligned
}

// A quantised block has 34 bytes, so its values are at odd multiples of two.
// run: grid=8 group=8 a:uchar[272] out:uint[8]
kernel void misaligned_word_of_a_block(device const uchar *a [[buffer(0)]], device uint *out [[buffer(1)]],
                                       uint i [[thread_position_in_grid]]) {
  out[i] = *(device const uint *)(a + 34 * i + 2);  // BUG: misaligned
}

// run: grid=32 group=32 out:float[32]
kernel void misaligned_in_a_tile(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup float tile[36];
  tile[i] = i;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (i < 8) out[i] = ((threadgroup float2 *)(tile + 1))[i].x;  // BUG: misaligned
}
