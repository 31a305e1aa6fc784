// Tiles, matrices, double buffers, exchanges among lanes: nothing to report.
#include <metal_stdlib>
using namespace metal;

// run: grid=32,32 group=16,16 a:float[1024] b:float[1024] out:float[1024]
kernel void tiled_matmul(device const float *a [[buffer(0)]], device const float *b [[buffer(1)]],
                         device float *out [[buffer(2)]], uint2 at [[thread_position_in_grid]],
                         uint2 t [[thread_position_in_threadgroup]]) {
  threadgroup float ta[16][16], tb[16][17];
  float sum = 0;
  for (uint k = 0; k < 32; k += 16) {
    ta[t.y][t.x] = a[at.y * 32 + k + t.x];
    tb[t.y][t.x] = b[(k + t.y) * 32 + at.x];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint j = 0; j < 16; j++) sum += ta[t.y][j] * tb[j][t.x];
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  out[at.y * 32 + at.x] = sum;
}

// One barrier a round: the other half is filled while this one is read.
// run: grid=64 group=64 a:float[512] out:float[64]
kernel void double_buffer(device const float *a [[buffer(0)]], device float *out [[buffer(1)]],
                          uint i [[thread_index_in_threadgroup]]) {
  threadgroup float tile[2][64];
  float sum = 0;
  tile[0][i] = a[i];
  for (uint k = 0; k < 8; k++) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (k + 1 < 8) tile[(k + 1) % 2][i] = a[(k + 1) * 64 + i];
    for (uint j = 0; j < 64; j += 7) sum += tile[k % 2][(i + j) % 64];
  }
  out[i] = sum;
}

// Each simdgroup has its part of K and its own tile: simdgroup_barrier is enough until the sums meet.
// run: grid=128 group=128 a:half[512] b:half[512] out:float[64]
kernel void k_split(device const half *a [[buffer(0)]], device const half *b [[buffer(1)]],
                    device float *out [[buffer(2)]], uint i [[thread_index_in_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]], uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup half tiles[4][64];
  threadgroup float sums[4][64];
  simdgroup_half8x8 x, w;
  simdgroup_float8x8 c(0.0f);
  for (uint k = sg * 16; k < sg * 16 + 16; k += 8) {
    for (uint j = lane; j < 64; j += 32) tiles[sg][j] = b[(j / 8) * 64 + k + j % 8];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_load(x, a + k, 64);
    simdgroup_load(w, tiles[sg], 8, ulong2(0, 0), true);
    simdgroup_multiply_accumulate(c, x, w, c);
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
  simdgroup_store(c, sums[sg], 8);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (i < 64) out[i] = sums[0][i] + sums[1][i] + sums[2][i] + sums[3][i];
}

// run: grid=64,4 group=16,4 a:float[1024] out:float[1024]
kernel void transposed(device const float *a [[buffer(0)]], device float *out [[buffer(1)]],
                        uint2 g [[threadgroup_position_in_grid]], uint2 t [[thread_position_in_threadgroup]]) {
  threadgroup float tile[16][17];
  for (uint y = t.y; y < 16; y += 4) tile[y][t.x] = a[y * 64 + g.x * 16 + t.x];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint y = t.y; y < 16; y += 4) out[(g.x * 16 + y) * 16 + t.x] = tile[t.x][y];
}

// Each lane hands its value to the next one through its simdgroup's memory.
// run: grid=64 group=64 a:float[64] out:float[64]
kernel void ring(device const float *a [[buffer(0)]], device float *out [[buffer(1)]],
                 uint i [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                 uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup float slots[2][32];
  float v = a[i];
  for (uint round = 0; round < 3; round++) {
    slots[sg][lane] = v;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    v += slots[sg][(lane + 1) % 32];
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
  out[i] = v;
}

// Neighbouring bytes and half words belong to different threads; the fourth part of a float3 belongs to nobody.
// run: grid=64 group=64 out:float[64]
kernel void parts_of_a_word(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup uchar bytes[64];
  threadgroup half halves[64];
  threadgroup float vectors[64 * 4];
  bytes[i] = i;
  halves[i] = i;
  for (uint k = 0; k < 3; k++) vectors[i * 4 + k] = i + k;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float3 v = ((threadgroup float3 *)vectors)[63 - i];
  out[i] = bytes[63 - i] + halves[63 - i] + v.x + v.y + v.z;
}

struct Entry {
  half scale;
  uint count;
};
// A struct with padding, filled field by field and copied whole.
// run: grid=64 group=64 out:float[64]
kernel void struct_with_padding(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup Entry entries[64];
  entries[i].scale = half(i) / 2;
  entries[i].count = i;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  Entry e = entries[63 - i];
  out[i] = e.scale * e.count;
}

// run: grid=50 group=50 out:float[50]
kernel void ragged_simdgroup(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup float tile[50];
  tile[i] = simd_sum(1.0f);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = tile[49 - i];
}
