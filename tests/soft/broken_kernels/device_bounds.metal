// Accesses that leave a buffer. The test lays the buffers of a run next to each other in memory, so that an overrun
// falls into another one's bytes.
#include <metal_stdlib>
using namespace metal;

// run: grid=64 group=32 a:float[64] out:float[64]
kernel void past_the_end(device const float *a [[buffer(0)]], device float *out [[buffer(1)]],
                         uint i [[thread_position_in_grid]]) {
  out[i] = a[i] + a[i + 1];  // BUG: out-of-bounds
}

// run: grid=64 group=64 a:float[64] out:float[64]
kernel void before_the_start(device const float *a [[buffer(0)]], device float *out [[buffer(1)]],
                             uint i [[thread_position_in_grid]]) {
  out[i] = a[int(i) - 1];  // BUG: out-of-bounds
}

// The index wraps around to 4294967295: 16 GiB away.
// run: grid=64 group=64 a:float[64] out:float[64]
kernel void unsigned_index_wraps(device const float *a [[buffer(0)]], device float *out [[buffer(1)]],
                                 uint i [[thread_position_in_grid]]) {
  uint before = i - 1;
  out[i] = a[before];  // BUG: out-of-bounds
}

// run: grid=64 group=32 a:float[60] out:float[60]
kernel void no_guard_at_the_edge(device const float *a [[buffer(0)]], device float *out [[buffer(1)]],
                                 uint i [[thread_position_in_grid]]) {
  float x = i < 60 ? a[i] : 0.0f;
  out[i] = x;  // BUG: out-of-bounds
}

// Bound at element 16 of a buffer of 64: 48 are left.
// run: grid=64 group=32 a:float[64]@16 out:float[64]
kernel void forgets_the_offset(device const float *a [[buffer(0)]], device float *out [[buffer(1)]],
                               uint i [[thread_position_in_grid]]) {
  out[i] = a[i];  // BUG: out-of-bounds
}

// run: grid=16 group=16 a:float[61] out:float[16]
kernel void vector_over_the_tail(device const float *a [[buffer(0)]], device float *out [[buffer(1)]],
                                 uint i [[thread_position_in_grid]]) {
  float4 v = *(device const packed_float4 *)(a + 4 * i);  // BUG: out-of-bounds
  out[i] = v.x + v.y + v.z + v.w;
}

// 32 bytes in one access.
// run: grid=8 group=8 a:ulong[32] out:ulong[28]
kernel void thirty_two_bytes(device const ulong4 *a [[buffer(0)]], device ulong4 *out [[buffer(1)]],
                             uint i [[thread_position_in_grid]]) {
  out[i] = a[i] + 1;  // BUG: out-of-bounds
}

struct Block {
  half scale;
  char values[32];
};
// run: grid=4 group=4 a:char[102] out:float[4]
kernel void struct_copy(device const Block *a [[buffer(0)]], device float *out [[buffer(1)]],
                        uint i [[thread_position_in_grid]]) {
  Block b = a[i];  // BUG: out-of-bounds
  int sum = 0;
  for (int k = 0; k < 32; k++) sum += b.values[(k + i) % 32];
  out[i] = b.scale * sum;
}

struct Params {
  uint n;
  float scale;
};
// The host has set four bytes of the eight.
// run: grid=8 group=8 out:float[8] p:uint=8
kernel void arguments_too_short(device float *out [[buffer(0)]], constant Params &p [[buffer(1)]],
                                uint i [[thread_position_in_grid]]) {
  if (i < p.n) out[i] = p.scale;  // BUG: out-of-bounds
}

// Rows and columns swapped: 8 x 12 is not 12 x 8.
// run: grid=12,8 group=4,4 a:float[96] out:float[96]
kernel void swapped_axes(device const float *a [[buffer(0)]], device float *out [[buffer(1)]],
                         uint2 p [[thread_position_in_grid]]) {
  out[p.y * 12 + p.x] = a[p.x * 12 + p.y];  // BUG: out-of-bounds
}

// run: grid=64 group=64 bins:uint[16] values:uint[64]
kernel void histogram_bin(device atomic_uint *bins [[buffer(0)]], device const uint *values [[buffer(1)]],
                          uint i [[thread_position_in_grid]]) {
  uint bin = values[i] / 4 + (i == 63);
  atomic_fetch_add_explicit(&bins[bin], 1u, memory_order_relaxed);  // BUG: out-of-bounds
}

// A block table whose unused entries are -1.
// run: grid=32 group=32 table:int[4]=-1 cache:half[512] out:float[32]
kernel void unused_block(device const int *table [[buffer(0)]], device const half *cache [[buffer(1)]],
                         device float *out [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  int block = table[i / 8];
  out[i] = cache[block * 128 + int(i)];  // BUG: out-of-bounds
}

// The matrix at row 8 of a tile of 12 rows.
// run: grid=32 group=32 a:float[96] out:float[64]
kernel void matrix_over_the_edge(device const float *a [[buffer(0)]], device float *out [[buffer(1)]]) {
  simdgroup_float8x8 m;
  simdgroup_load(m, a + 64, 8);  // BUG: out-of-bounds
  simdgroup_store(m, out, 8);
}

static float from_a_helper(device const float *a, uint i) {
  return a[2 * i];  // BUG: out-of-bounds
}
// run: grid=64 group=64 a:float[100] out:float[64]
kernel void inside_a_helper(device const float *a [[buffer(0)]], device float *out [[buffer(1)]],
                            uint i [[thread_position_in_grid]]) {
  out[i] = from_a_helper(a, i);
}
