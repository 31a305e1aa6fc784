// Exercise 10, rope, another right answer: a pair as a complex number, addresses by hand.
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
    int slot = slots[row];
    if (slot < 0) return;
    uint in_block = uint(slot) % BLOCK_SIZE;
    ulong block = uint(slot) / BLOCK_SIZE;
    if (head >= a.heads + a.kv_heads) {
        uint kv_head = head - a.heads - a.kv_heads;
        ulong first = ((block * a.kv_heads + kv_head) * BLOCK_SIZE + in_block) * D4;
        for (uint d = lane; d < D4; d += 32) {
            store_kv(v_pool, first + d, d < HEAD_DIM ? v[row * a.v_stride + kv_head * HEAD_DIM + d] : 0.0f);
        }
        return;
    }
    bool is_key = head >= a.heads;
    uint half_dim = a.rope_dim / 2, step = INTERLEAVED ? 1 : half_dim;
    for (uint pair = lane; pair < half_dim; pair += 32) {
        uint d = INTERLEAVED ? 2 * pair : pair;
        float2 turn = cos_sin(float(positions[row]), turns[pair]);
        ulong from = is_key ? ulong(row) * a.k_stride + (head - a.heads) * HEAD_DIM
                            : ulong(row) * a.q_stride + head * HEAD_DIM;
        float2 z = is_key ? float2(k[from + d], k[from + d + step])
                          : float2(q[from + d], q[from + d + step]);
        float2 turned = float2(z.x * turn.x - z.y * turn.y, z.x * turn.y + z.y * turn.x);
        for (uint part = 0; part < 2; part++) {
            uint e = d + part * step;
            ulong quad = (block * a.kv_heads + (head - a.heads)) * (D4 / 4) + e / 4;
            if (is_key) store_kv(k_pool, (quad * BLOCK_SIZE + in_block) * 4 + e % 4, turned[part]);
            else q[from + e] = turned[part];
        }
    }
}
