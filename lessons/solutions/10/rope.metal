// Exercise 10, rope.
#include "kv_cache.h"

constant bool INTERLEAVED [[function_constant(0)]];
constant bool QK_NORM [[function_constant(1)]];   // of other models; not part of the exercise

struct RopeArgs {
    uint heads, kv_heads, rope_dim;
    uint q_stride, k_stride, v_stride;   // floats from row to row
    float norm_epsilon;
};

// cos and sin of the angle; `turns` is the frequency / 2 pi, as high + low.
inline float2 cos_sin(float position, float2 turns) {
    float whole = rint(position * turns.x);
    float fraction = fma(position, turns.y, fma(position, turns.x, -whole));
    float angle = fraction * 6.2831853f;
    return float2(cos(angle), sin(angle));
}

[[max_total_threads_per_threadgroup(128)]]
kernel void rope_and_store(device float *q [[buffer(0)]],              // [rows, heads, HEAD_DIM]
                           device const float *k [[buffer(1)]],        // [rows, kv_heads, HEAD_DIM]
                           device const float *v [[buffer(2)]],        // [rows, kv_heads, HEAD_DIM]
                           device const float *q_norm [[buffer(3)]],
                           device const float *k_norm [[buffer(4)]],
                           device const float2 *turns [[buffer(5)]],   // [rope_dim / 2]
                           device const int *positions [[buffer(6)]],  // [rows]
                           device const int *slots [[buffer(7)]],      // [rows]
                           device uchar *k_pool [[buffer(8)]], device uchar *v_pool [[buffer(9)]],
                           constant RopeArgs &a [[buffer(10)]],
                           uint2 group [[threadgroup_position_in_grid]],
                           uint lane [[thread_index_in_simdgroup]],
                           uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    uint row = group.y, head = group.x * 4 + simdgroup;   // queries, then keys, then values
    if (head >= a.heads + 2 * a.kv_heads) return;
    if (slots[row] < 0) return;
    uint slot = uint(slots[row]);

    if (head >= a.heads + a.kv_heads) {
        uint kv_head = head - a.heads - a.kv_heads;
        ulong to = v_row(slot, kv_head, a.kv_heads);
        for (uint d = lane; d < HEAD_DIM; d += 32) {
            store_kv(v_pool, to + d, v[ulong(row) * a.v_stride + kv_head * HEAD_DIM + d]);
        }
        return;
    }

    bool is_key = head >= a.heads;
    uint kv_head = is_key ? head - a.heads : 0;
    device float *q_row = q + ulong(row) * a.q_stride + (is_key ? 0 : head * HEAD_DIM);
    device const float *in = is_key ? k + ulong(row) * a.k_stride + kv_head * HEAD_DIM
                                    : (device const float *)q_row;
    for (uint i = lane; i < a.rope_dim / 2; i += 32) {
        uint d0 = INTERLEAVED ? 2 * i : i;
        uint d1 = INTERLEAVED ? 2 * i + 1 : i + a.rope_dim / 2;
        float x0 = in[d0];
        float x1 = in[d1];

        float2 cs = cos_sin(float(positions[row]), turns[i]);
        float y0 = x0 * cs.x - x1 * cs.y;
        float y1 = x0 * cs.y + x1 * cs.x;

        if (is_key) {
            uint at0 = d0 / 4 * (BLOCK_SIZE * 4) + d0 % 4;
            store_kv(k_pool, k_row(slot, kv_head, a.kv_heads) + at0, y0);
            uint at1 = d1 / 4 * (BLOCK_SIZE * 4) + d1 % 4;
            store_kv(k_pool, k_row(slot, kv_head, a.kv_heads) + at1, y1);
        } else {
            q_row[d0] = y0;
            q_row[d1] = y1;
        }
    }
}
