// Exchanges through device memory, indirection, early exits: nothing to report.
#include <metal_stdlib>
using namespace metal;

constant bool scaled [[function_constant(0)]];
constant bool scale_it = is_function_constant_defined(scaled) ? scaled : true;
constant float table[4] = {0.5, 1.0, 1.5, 2.0};

// run: grid=128 group=32 a:float[100] out:float[100] n:uint=100
kernel void guard_at_the_edge(device const float *a [[buffer(0)]], device float *out [[buffer(1)]],
                              constant uint &n [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  if (i >= n) return;
  out[i] = a[i] * (scale_it ? table[i % 4] : 1.0f);
}

// Whole simdgroups leave, and nobody waits for them.
// run: grid=256 group=128 w:half[384] x:float[64] out:float[6] rows:uint=6
kernel void matvec(device const half *w [[buffer(0)]], device const float *x [[buffer(1)]],
                   device float *out [[buffer(2)]], constant uint &rows [[buffer(3)]],
                   uint g [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                   uint sg [[simdgroup_index_in_threadgroup]]) {
  uint row = g * 4 + sg;
  if (row >= rows) return;
  float sum = 0;
  for (uint k = lane; k < 64; k += 32) sum += w[row * 64 + k] * x[k];
  sum = simd_sum(sum);
  if (lane == 0) out[row] = sum;
}

// The same buffer in and out: each thread its own element.
// run: grid=64 group=32 a:float[64] b:a
kernel void in_place(device const float *a [[buffer(0)]], device float *b [[buffer(1)]],
                     uint i [[thread_position_in_grid]]) {
  b[i] = 2 * a[i] + 1;
}

// One buffer holds both, from different offsets.
// run: grid=64 group=32 a:float[128] b:a@64
kernel void two_parts_of_one_buffer(device const float *a [[buffer(0)]], device float *b [[buffer(1)]],
                                    uint i [[thread_position_in_grid]]) {
  b[i] = a[i] + 1;
}

// run: grid=64 group=64 a:float[64]
kernel void reverse_through_device_memory(device float *a [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  float mine = a[63 - i];
  threadgroup_barrier(mem_flags::mem_device);
  a[i] = mine;
  threadgroup_barrier(mem_flags::mem_device);
  a[i] += i == 0 ? 0.0f : 1.0f;
}

// run: grid=64 group=32 a:float[64] b:float[64] out:float[64]
kernel void both_kinds_of_memory_in_one_barrier(device float *a [[buffer(0)]], device const float *b [[buffer(1)]],
                                                device float *out [[buffer(2)]], uint g [[thread_position_in_grid]],
                                                uint i [[thread_index_in_threadgroup]]) {
  threadgroup float tile[32];
  uint other = g - i + (31 - i);
  a[g] = b[g];
  tile[i] = b[g];
  threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  out[g] = a[other] + tile[31 - i];
}

// Keys and values through a block table; unused entries are not followed. One simdgroup per head, an online softmax.
// run: grid=64 group=32 q:float[64] keys:half[2048] values:half[2048] blocks:int[4] out:float[64] length:uint=50
kernel void paged_attention(device const float *q [[buffer(0)]], device const half *keys [[buffer(1)]],
                            device const half *values [[buffer(2)]], device const int *blocks [[buffer(3)]],
                            device float *out [[buffer(4)]], constant uint &length [[buffer(5)]],
                            uint head [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
  float best = -INFINITY, total = 0, sum = 0;
  for (uint t = 0; t < length; t++) {
    uint slot = uint(blocks[t / 16]) * 16 + t % 16;
    float score = simd_sum(q[head * 32 + lane] * keys[slot * 32 + lane]) * 1e-3f;
    float higher = max(best, score), keep = exp(best - higher), p = exp(score - higher);
    total = total * keep + p;
    sum = sum * keep + p * values[slot * 32 + lane];
    best = higher;
  }
  out[head * 32 + lane] = sum / total;
}

// Scattered rows, each written by one threadgroup; a slot of -1 is written by nobody.
// run: grid=128 group=32 a:half[128] slots:int[4] cache:half[256]
kernel void scatter(device const half *a [[buffer(0)]], device const int *slots [[buffer(1)]],
                    device half *cache [[buffer(2)]], uint g [[threadgroup_position_in_grid]],
                    uint i [[thread_index_in_threadgroup]]) {
  int slot = slots[g] * 2 - 1;
  if (slot >= 0) cache[slot * 32 + int(i)] = a[g * 32 + i];
}

struct Block {
  half scale;
  char values[32];
};
// run: grid=32 group=32 a:uchar[136] out:float[4]
kernel void quantised_blocks(device const Block *a [[buffer(0)]], device float *out [[buffer(1)]],
                             uint lane [[thread_index_in_simdgroup]]) {
  device const Block &b = a[lane / 8];
  packed_char4 q = *(device const packed_char4 *)(b.values + lane % 8 * 4);
  float sum = float(b.scale) * float(q[0] + q[1] + q[2] + q[3]);
  for (ushort step = 4; step > 0; step /= 2) sum += simd_shuffle_xor(sum, step);
  if (lane % 8 == 0) out[lane / 8] = sum;
}

// Threadgroups meet in atomics only; the float sum is exact, so that its order does not matter.
// run: grid=256 group=64 a:float[256] sum:float[1]=0 most:uint[1]=0
kernel void atomics_of_all_threadgroups(device const float *a [[buffer(0)]], device atomic_float *sum [[buffer(1)]],
                                        device atomic_uint *most [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(sum, a[i], memory_order_relaxed);
  atomic_fetch_max_explicit(most, uint(a[i]), memory_order_relaxed);
}

// run: grid=16 group=8 a:float[256] out:float[256]
kernel void own_arrays(device const float4 *a [[buffer(0)]], device float *out [[buffer(1)]],
                       uint i [[thread_position_in_grid]]) {
  float4 rows[4];
  for (uint k = 0; k < 4; k++) rows[k] = a[i * 4 + k];
  float flat[16];
  for (uint k = 0; k < 16; k++) flat[k] = rows[k % 4][k / 4];
  for (uint k = 0; k < 16; k++) out[i * 16 + k] = flat[(k + i) % 16];
}
