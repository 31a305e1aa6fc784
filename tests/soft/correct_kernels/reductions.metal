// Sums, scans and votes in the usual styles: nothing to report.
#include <metal_stdlib>
using namespace metal;

// run: grid=256 group=256 a:float[256] out:float[1]
kernel void tree(device const float *a [[buffer(0)]], device float *out [[buffer(1)]],
                 uint i [[thread_index_in_threadgroup]]) {
  threadgroup float sums[256];
  sums[i] = a[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint stride = 128; stride > 0; stride /= 2) {
    if (i < stride) sums[i] += sums[i + stride];
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (i == 0) out[0] = sums[0];
}

static float over_the_threadgroup(float v, threadgroup float *scratch, uint lane, uint sg, uint count) {
  v = simd_sum(v);
  if (lane == 0) scratch[sg] = v;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return simd_sum(lane < count ? scratch[lane] : 0.0f);
}
// One value per simdgroup; the last simdgroup is not whole. The scratch is used twice.
// run: grid=400 group=100 a:float[400] out:float[400]
kernel void one_value_per_simdgroup(device const float *a [[buffer(0)]], device float *out [[buffer(1)]],
                                    uint g [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                                    uint sg [[simdgroup_index_in_threadgroup]],
                                    uint count [[simdgroups_per_threadgroup]]) {
  threadgroup float scratch[32];
  float mean = over_the_threadgroup(a[g], scratch, lane, sg, count) / 100;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float d = a[g] - mean;
  out[g] = d * rsqrt(over_the_threadgroup(d * d, scratch, lane, sg, count) / 100 + 1e-5f);
}

// run: grid=128 group=128 a:float[128] out:float[128] scratch:threadgroup[16]
kernel void scan_with_a_threadgroup_argument(device const float *a [[buffer(0)]], device float *out [[buffer(1)]],
                                             threadgroup float *scratch [[threadgroup(0)]],
                                             uint i [[thread_index_in_threadgroup]],
                                             uint lane [[thread_index_in_simdgroup]],
                                             uint sg [[simdgroup_index_in_threadgroup]]) {
  float sum = simd_prefix_inclusive_sum(a[i]);
  if (lane == 31) scratch[sg] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint k = 0; k < sg; k++) sum += scratch[k];
  out[i] = sum;
}

// Hillis and Steele: reads and writes of one array, with a barrier between each.
// run: grid=64 group=64 a:float[64] out:float[64]
kernel void scan_in_place(device const float *a [[buffer(0)]], device float *out [[buffer(1)]],
                          uint i [[thread_index_in_threadgroup]]) {
  threadgroup float sums[64];
  sums[i] = a[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint step = 1; step < 64; step *= 2) {
    float left = i >= step ? sums[i - step] : 0.0f;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    sums[i] += left;
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  out[i] = sums[i];
}

// run: grid=64 group=64 a:float[64] out:float[2]
kernel void argmax_by_shuffles(device const float *a [[buffer(0)]], device float *out [[buffer(1)]],
                               uint i [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                               uint sg [[simdgroup_index_in_threadgroup]]) {
  float best = a[i] * float((i * 37) % 64);
  uint at = i;
  for (ushort step = 16; step > 0; step /= 2) {
    float other = simd_shuffle_xor(best, step);
    uint where = simd_shuffle_xor(at, step);
    if (other > best || (other == best && where < at)) { best = other; at = where; }
  }
  threadgroup float2 found[2];
  if (lane == 0) found[sg] = float2(best, at);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (i == 0) {
    float2 winner = found[0].x >= found[1].x ? found[0] : found[1];
    out[0] = winner.x;
    out[1] = winner.y;
  }
}

// run: grid=512 group=64 values:uchar[512] bins:uint[32]=0
kernel void histogram(device const uchar *values [[buffer(0)]], device atomic_uint *bins [[buffer(1)]],
                      uint g [[thread_position_in_grid]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup atomic_uint mine[32];
  if (i < 32) atomic_store_explicit(&mine[i], 0u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  atomic_fetch_add_explicit(&mine[values[g] % 32], 1u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (i < 32) {
    uint count = atomic_load_explicit(&mine[i], memory_order_relaxed);
    if (count) atomic_fetch_add_explicit(&bins[i], count, memory_order_relaxed);
  }
}

// A counter set by a plain write before the barrier and read plainly after it.
// run: grid=64 group=64 out:uint[64]
kernel void atomics_between_barriers(device uint *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup uint count;
  if (i == 0) count = 7;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  atomic_fetch_add_explicit((threadgroup atomic_uint *)&count, i, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = count;
}
