// attend_one: paged attention for sequences that have one query each, straight from the blocks.
//
// Version ladder (per layer; L tokens of context)
//   1  gather K and V, scores, mask, softmax, apply: 5 dispatches, and each byte of the context
//      is read twice and written once (attention_naive.metal)
//   2  fused, a simdgroup a key, lanes along head_dim: one pass, but a simd_sum (27 cycles) for
//      every key and head
//   3  this file: a lane owns a key, so scores need no reduction; GQA's query heads share each
//      load of K and V; long contexts are split over threadgroups, attend_combine adds them up
//
// 1. A threadgroup serves one KV head and its GROUP (1 to 8) query heads for SPLIT_KEYS keys: K
//    and V cross the memory bus once, not once per query head.
// 2. Online softmax (Milakov & Gimelshein, 2018) in steps of 32 keys a simdgroup: running maximum
//    m and sum l; what was gathered so far is scaled by exp(m_old - m_new). The sum stays in
//    lanes until the end; only the maximum is reduced in the loop.
// 3. Scores: lane = key. Values: lane = 4 dimensions of head_dim, so weights pass through
//    threadgroup memory between the two, inside a simdgroup: simdgroup_barrier, no threadgroup
//    barrier in the loop.
//
//      scores   lane 0..31  = key first + lane           K block: 16 keys x 8 bytes contiguous
//      values   head_dim 64: lanes 0..15 = dims 4 lane.. of even keys, 16..31 of odd keys
//               head_dim 256: lane = dims 4 lane.. and 128 + 4 lane.. of every key
//
// 4. Keys are absolute multiples of 32 and splits of SPLIT_KEYS, whatever the batch: a sequence's
//    result depends on its own context only.
// 5. Slots past the context are never read: reused blocks may hold NaN there. A query whose keys
//    are all masked cannot occur (it sees itself).
// 6. Registers a lane at GROUP 8, head_dim 256: 64 for values; 32 for scores and then, in their
//    place, for the loads of V that overlap; 24 for weights, maxima and sums. Threadgroup memory:
//    8 KB queries + 4 KB weights + 0.75 KB.
#include "attention.h"

constant uint GROUP [[function_constant(0)]];   // query heads of a threadgroup, 1 to 8
constant constexpr uint SIMDGROUPS = 4, NOWHERE = 0xFFFFFFFFu;
constant constexpr ushort TURN = 4;             // values whose loads overlap
#define EACH_HEAD(g) UNROLL for (ushort g = 0; g < 8; g++) if (g < GROUP)
#define EACH_FOUR(h) UNROLL for (ushort h = 0; h < 2; h++) if (h * 4u < GROUP)

[[max_total_threads_per_threadgroup(128)]]
kernel void attend_one(device const float *q [[buffer(0)]],            // [rows, heads, head_dim]
                       device const uchar *k_pool [[buffer(1)]],
                       device const uchar *v_pool [[buffer(2)]],
                       device const int *block_tables [[buffer(3)]],   // [sequences, table_stride]
                       device const int *context_lens [[buffer(4)]],   // [sequences]
                       device const int *query_start [[buffer(5)]],    // [sequences + 1]
                       device float *out [[buffer(6)]],                // [rows, heads, head_dim]
                       // [sequences, heads, splits, head_dim + 2]: sums, then maximum and total
                       device float *partial [[buffer(7)]],
                       constant AttentionArgs &a [[buffer(8)]],
                       uint3 group [[threadgroup_position_in_grid]],   // split, heads, sequence
                       uint thread_index [[thread_index_in_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]],
                       uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup float4 queries[8][64];                       // [GROUP, D4 / 4], scaled
    threadgroup float4 weights[SIMDGROUPS][32][2];           // [simdgroup, key, 8 heads]
    threadgroup uint slots[SIMDGROUPS][32];
    threadgroup float maxima[SIMDGROUPS][8], totals[SIMDGROUPS][8];

    uint sequence = group.z, row = uint(query_start[sequence]);
    int context = context_lens[sequence];
    if (context <= 0 || query_start[sequence + 1] - int(row) != 1) return;
    uint begin = max(first_key(uint(context) - 1, a.window), group.x * SPLIT_KEYS);
    uint end = min(uint(context), (group.x + 1) * SPLIT_KEYS);
    if (begin >= end) return;                                // attend_combine skips it as well

    uint parts = a.heads / a.kv_heads / GROUP;               // threadgroups that share a KV head
    uint kv_head = group.y / parts, head = group.y * GROUP;  // head: the first of GROUP
    constexpr uint all = SIMDGROUPS * 32;
    uint chunks = D4 / 4;                                    // float4 of a head
    for (uint i = thread_index; i < GROUP * D4; i += all) {
        uint g = i / D4, d = i % D4;
        float value = d < HEAD_DIM ? q[ulong(row) * a.q_stride + (head + g) * HEAD_DIM + d] : 0.0f;
        ((threadgroup float *)queries[g])[d] = value * a.scale;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float4 best[2] = {float4(-INFINITY), float4(-INFINITY)};
    float4 total[2] = {float4(0.0f), float4(0.0f)};
    float4 values[8][2];
    EACH_HEAD(g) values[g][0] = values[g][1] = float4(0.0f);
    uint key_groups = chunks < 32 ? 32 / chunks : 1;         // keys that lanes take at once
    uint chunk = chunks < 32 ? lane % chunks : lane, key_group = chunks < 32 ? lane / chunks : 0;

    for (uint first = begin / 32 * 32 + simdgroup * 32; first < end; first += all) {
        uint key = first + lane, slot = NOWHERE;
        float4 score[2] = {float4(-INFINITY), float4(-INFINITY)};
        if (key >= begin && key < end) {
            int block = block_tables[sequence * a.table_stride + key / BLOCK_SIZE];
            slot = uint(block) * BLOCK_SIZE + key % BLOCK_SIZE;
            ulong at = k_row(slot, kv_head, a.kv_heads);
            float4 sums[8];
            EACH_HEAD(g) sums[g] = float4(0.0f);
            for (uint c = 0; c < chunks; c++) {
                float4 k4 = load_kv4(k_pool, at + c * (BLOCK_SIZE * 4));
                EACH_HEAD(g) sums[g] = fma(queries[g][c], k4, sums[g]);
            }
            EACH_HEAD(g) {
                float2 pair = sums[g].xy + sums[g].zw;
                score[g / 4][g % 4] = capped(pair.x + pair.y, a);
            }
        }
        float4 correction[2];
        EACH_FOUR(h) {
            float4 higher = max(best[h], simd_max(score[h]));
            // A head whose scores are all -inf so far must not compute -inf - -inf.
            float4 base = select(higher, float4(0.0f), higher == float4(-INFINITY));
            float4 weight = exp(score[h] - base);
            correction[h] = exp(best[h] - base);
            total[h] = fma(total[h], correction[h], weight);
            best[h] = higher;
            weights[simdgroup][lane][h] = weight;
        }
        slots[simdgroup][lane] = slot;
        simdgroup_barrier(mem_flags::mem_threadgroup);       // weights and slots are there

        EACH_HEAD(g) {
            values[g][0] *= correction[g / 4][g % 4];
            values[g][1] *= correction[g / 4][g % 4];
        }
        uint at_once = key_groups * TURN;
        for (uint base = key_group; base < 32 && key_group < key_groups; base += at_once) {
            float4 v4[TURN][2];                              // all are loaded before one is used
            UNROLL for (ushort t = 0; t < TURN; t++) {
                uint i = base + t * key_groups, from = i < 32 ? slots[simdgroup][i] : NOWHERE;
                v4[t][0] = v4[t][1] = float4(0.0f);
                if (from == NOWHERE) continue;
                ulong at = v_row(from, kv_head, a.kv_heads) + chunk * 4;
                v4[t][0] = load_kv4(v_pool, at);
                if (chunk + 32 < chunks) v4[t][1] = load_kv4(v_pool, at + 128);
            }
            UNROLL for (ushort t = 0; t < TURN; t++) {
                uint i = base + t * key_groups;
                if (i >= 32) break;
                float4 weight[2];
                EACH_FOUR(h) weight[h] = weights[simdgroup][i][h];
                EACH_HEAD(g) {
                    float w = weight[g / 4][g % 4];
                    values[g][0] = fma(float4(w), v4[t][0], values[g][0]);
                    if (chunks > 32) values[g][1] = fma(float4(w), v4[t][1], values[g][1]);
                }
            }
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);       // read before the next overwrite
    }

    // The four simdgroups' results become one: factors first, then head by head.
    EACH_FOUR(h) total[h] = simd_sum(total[h]);
    EACH_HEAD(g) if (lane == 0) {
        maxima[simdgroup][g] = best[g / 4][g % 4];
        totals[simdgroup][g] = total[g / 4][g % 4];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);         // and nobody needs `weights` again
    threadgroup float *gathered = (threadgroup float *)weights;   // [simdgroup, key group, D4]
    EACH_HEAD(g) {
        float highest = -INFINITY, sum = 0.0f, factor = 0.0f;
        for (uint i = 0; i < SIMDGROUPS; i++) highest = max(highest, maxima[i][g]);
        for (uint i = 0; i < SIMDGROUPS; i++) {
            float f = maxima[i][g] == -INFINITY ? 0.0f : exp(maxima[i][g] - highest);
            sum = fma(totals[i][g], f, sum);
            if (i == simdgroup) factor = f;
        }
        if (key_group < key_groups) {
            uint at = (simdgroup * key_groups + key_group) * chunks + chunk;   // in float4
            threadgroup float4 *to = (threadgroup float4 *)gathered + at;
            to[0] = values[g][0] * factor;
            if (chunk + 32 < chunks) to[32] = values[g][1] * factor;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        ulong part = (ulong(sequence) * a.heads + head + g) * a.splits + group.x;
        device float *mine = partial + part * (HEAD_DIM + 2);
        for (uint d = thread_index; d < HEAD_DIM; d += all) {
            float value = 0.0f;
            for (uint i = 0; i < SIMDGROUPS * key_groups; i++) value += gathered[i * D4 + d];
            if (a.splits > 1) mine[d] = value;
            else out[ulong(row) * a.out_stride + (head + g) * HEAD_DIM + d] = value / sum;
        }
        if (a.splits > 1 && thread_index == 0) {
            mine[HEAD_DIM] = highest;
            mine[HEAD_DIM + 1] = sum;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);     // before the next head overwrites
    }
}

// Adds the splits of each head, in order. With one split in use the factors are 1 and the result
// has the very bits that attend_one would have written without splitting.
[[max_total_threads_per_threadgroup(128)]]
kernel void attend_combine(device const float *partial [[buffer(0)]],
                           device const int *context_lens [[buffer(1)]],
                           device const int *query_start [[buffer(2)]],
                           device float *out [[buffer(3)]],
                           constant AttentionArgs &a [[buffer(4)]],
                           uint2 group [[threadgroup_position_in_grid]],   // head, sequence
                           uint thread_index [[thread_index_in_threadgroup]]) {
    uint head = group.x, sequence = group.y, row = uint(query_start[sequence]);
    int context = context_lens[sequence];
    if (context <= 0 || query_start[sequence + 1] - int(row) != 1) return;
    uint from = first_key(uint(context) - 1, a.window) / SPLIT_KEYS;
    uint to = (uint(context) - 1) / SPLIT_KEYS + 1;
    ulong stride = HEAD_DIM + 2;
    device const float *parts = partial + (ulong(sequence) * a.heads + head) * a.splits * stride;
    float highest = -INFINITY, sum = 0.0f;
    for (uint i = from; i < to; i++) highest = max(highest, parts[i * stride + HEAD_DIM]);
    for (uint i = from; i < to; i++) {
        float m = parts[i * stride + HEAD_DIM];
        sum += m == -INFINITY ? 0.0f : parts[i * stride + HEAD_DIM + 1] * exp(m - highest);
    }
    for (uint d = thread_index; d < HEAD_DIM; d += 128) {
        float value = 0.0f;
        for (uint i = from; i < to; i++) {
            float m = parts[i * stride + HEAD_DIM];
            value += m == -INFINITY ? 0.0f : parts[i * stride + d] * exp(m - highest);
        }
        out[ulong(row) * a.out_stride + head * HEAD_DIM + d] = value / sum;
    }
}
