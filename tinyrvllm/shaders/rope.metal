// rope_and_store: Q/K norm, rotary embedding and the write to the paged cache, one dispatch a
// layer. Q is rotated in place; K and V leave their projections for the cache.
//
// Version ladder (dispatches a layer)
//   1  norm Q, norm K, rotate Q, rotate K, write K, write V: 6, and tables of cos and sin rebuilt
//      on the host each step
//   2  this file: 1, angles computed where they are used
//
// 1. A simdgroup owns one head of one row, so the norm is one simd_sum and no threadgroup barrier
//    is needed; lanes stride over the pairs of a rotation and each touches only its own pair, which
//    is what makes working in place safe.
// 2. Pairs are (2i, 2i+1) in files of the llama architecture and (i, i + rope_dim/2) in the
//    others: INTERLEAVED. Dimensions from rope_dim on pass through.
// 3. An angle is counted in turns, position * frequency / 2 pi, with the frequency as a pair of
//    floats high + low. fma takes the whole turns off the exact product, so that the fraction is
//    kept: 1e-7 of a turn at position 131,072, where float radians are off by 0.004. It is right
//    whether or not the compiler fuses a * b + c: before Metal 3.2 nothing stops it.
// 4. A slot of -1 is padding: nothing is read or written.
//
//    head_dim 64, half split:   lane i holds  x[i] and x[i + 32]
//    head_dim 64, interleaved:  lane i holds  x[2i] and x[2i + 1]
#include "rope.h"

struct RopeArgs {   // mirrored by kernels/rope.py
    uint heads, kv_heads, rope_dim;
    uint q_stride, k_stride, v_stride;   // floats from row to row
    float norm_epsilon;
};

[[max_total_threads_per_threadgroup(128)]]
kernel void rope_and_store(device float *q [[buffer(0)]],              // [rows, heads, head_dim]
                           device const float *k [[buffer(1)]],        // [rows, kv_heads, head_dim]
                           device const float *v [[buffer(2)]],        // [rows, kv_heads, head_dim]
                           device const float *q_norm [[buffer(3)]],   // [head_dim]
                           device const float *k_norm [[buffer(4)]],   // [head_dim]
                           device const float2 *turns [[buffer(5)]],   // [rope_dim / 2]
                           device const int *positions [[buffer(6)]],  // [rows]
                           device const int *slots [[buffer(7)]],      // [rows]
                           device uchar *k_pool [[buffer(8)]], device uchar *v_pool [[buffer(9)]],
                           constant RopeArgs &a [[buffer(10)]],
                           uint2 group [[threadgroup_position_in_grid]],
                           uint lane [[thread_index_in_simdgroup]],
                           uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    uint row = group.y, head = group.x * 4 + simdgroup;
    if (slots[row] < 0 || head >= a.heads + 2 * a.kv_heads) return;
    uint slot = uint(slots[row]);

    if (head >= a.heads + a.kv_heads) {                        // a value: copy it
        uint kv_head = head - a.heads - a.kv_heads;
        device const float *in = v + ulong(row) * a.v_stride + kv_head * HEAD_DIM;
        ulong out = v_row(slot, kv_head, a.kv_heads);
        for (uint d = lane; d < D4; d += 32) {
            store_kv(v_pool, out + d, d < HEAD_DIM ? in[d] : 0.0f);
        }
        return;
    }

    bool is_key = head >= a.heads;
    uint kv_head = is_key ? head - a.heads : 0;
    device float *q_row = q + ulong(row) * a.q_stride + (is_key ? 0 : head * HEAD_DIM);
    device const float *in = is_key ? k + ulong(row) * a.k_stride + kv_head * HEAD_DIM
                                    : (device const float *)q_row;
    ulong k_out = k_row(slot, kv_head, a.kv_heads);
    device const float *norm = is_key ? k_norm : q_norm;
    float scale = 1.0f;
    if (QK_NORM) {
        scale = head_scale(in, lane, a.norm_epsilon);
        simdgroup_barrier(mem_flags::mem_device);   // q is rotated in place, by other lanes
    }
    uint pairs = a.rope_dim / 2;
    for (uint i = lane; i < pairs; i += 32) {
        uint2 d = pair_of(i, pairs);
        float2 y = rotated(in, norm, scale, d, float(positions[row]), turns[i]);
        if (is_key) {
            store_kv(k_pool, k_out + d.x / 4 * (BLOCK_SIZE * 4) + d.x % 4, y.x);
            store_kv(k_pool, k_out + d.y / 4 * (BLOCK_SIZE * 4) + d.y % 4, y.y);
        } else {
            q_row[d.x] = y.x;
            q_row[d.y] = y.y;
        }
    }
    for (uint d = a.rope_dim + lane; d < D4; d += 32) {        // not rotated, and the padding
        float x = element(in, norm, scale, d);
        if (is_key) store_kv(k_pool, k_out + d / 4 * (BLOCK_SIZE * 4) + d % 4, x);
        else if (d < HEAD_DIM) q_row[d] = x;
    }
}
