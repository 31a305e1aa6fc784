// attend_spread: attend_one for a GPU of many cores, a threadgroup for each query head.
//
// Version ladder (32 heads of 128 and 190 keys on an H200, as part of a step)
//   1  attend_one with one head a threadgroup: 4 simdgroups go twice over the keys, and the
//      compiler moves each load down to its use, which waits for it        17 us
//   2  this file                                                           6 us
//   3  with ROPED: rotation and the write to the cache, too, and a phase less
//
// 1. Nearly all of the time is waiting for memory, so all loads of a turn are under way before one
//    is used; simdgroup_barrier(mem_none) holds them there (matvec, point 8). Where the first keys
//    lie is asked for before the query.
// 2. 8 simdgroups of 32 keys: contexts of up to 256 take one round.
// 3. Lanes as in attend_one: lane = key for scores, lane = 4 dimensions of head_dim for values.
//    A lane without a key of its own loads another's, with a score of -inf and a weight of 0, so
//    that no lane branches around a barrier and no slot past the context is read.
// 4. One head has one maximum, one sum and one float4 of values (two from head_dim 129 on).
// 5. ROPED: q, k and v are as their projections left them (rope.metal). Each threadgroup rotates
//    its query, and the newest key for itself: what it would read of the cache is being written,
//    by the first head of those that share it. Simdgroup 0 begins with the newest key's score and
//    value.
#include "attention.h"
#include "rope.h"

constant bool ROPED [[function_constant(2)]];
constant constexpr uint SIMDGROUPS = 8;
constant constexpr ushort TURN = 16;   // keys or values whose loads overlap
#define EACH_OF_TURN(t) UNROLL for (ushort t = 0; t < TURN; t++)
constant uint CHUNKS = D4 / 4;                                // float4 of a head

inline uint slot_of(device const int *table, uint key) {
    return uint(table[key / BLOCK_SIZE]) * BLOCK_SIZE + key % BLOCK_SIZE;
}

// A head normed and rotated, then as the cache keeps a key, or a query times `gain`: D4 floats, of
// which those from head_dim on are 0.
inline void rotate_head(threadgroup float *to, bool is_key, float gain, device const float *in,
                        device const float *norm, device const float2 *turns, uint position,
                        uint lane, constant AttentionArgs &a) {
    float scale = QK_NORM ? head_scale(in, lane, a.norm_epsilon) : 1.0f;
    uint pairs = a.rope_dim / 2;
    for (uint i = lane; i < pairs; i += 32) {
        uint2 d = pair_of(i, pairs);
        float2 y = rotated(in, norm, scale, d, float(position), turns[i]);
        to[d.x] = is_key ? kept(y.x) : y.x * gain;
        to[d.y] = is_key ? kept(y.y) : y.y * gain;
    }
    for (uint d = a.rope_dim + lane; d < D4; d += 32) {
        float x = element(in, norm, scale, d);
        to[d] = is_key ? kept(x) : x * gain;
    }
}

[[max_total_threads_per_threadgroup(256)]]
kernel void attend_spread(device const float *q [[buffer(0)]],            // [rows, heads, head_dim]
                          device uchar *k_pool [[buffer(1)]], device uchar *v_pool [[buffer(2)]],
                          // [sequences, table_stride]
                          device const int *block_tables [[buffer(3)]],
                          device const int *context_lens [[buffer(4)]],   // [sequences]
                          device const int *query_start [[buffer(5)]],    // [sequences + 1]
                          device float *out [[buffer(6)]],                // [rows, heads, head_dim]
                          // [sequences, heads, splits, head_dim + 2]: sums, then maximum and total
                          device float *partial [[buffer(7)]],
                          // The rest with ROPED only: [rows, kv_heads, head_dim]
                          device const float *k [[buffer(8)]], device const float *v [[buffer(9)]],
                          device const float *q_norm [[buffer(10)]],      // [head_dim]
                          device const float *k_norm [[buffer(11)]],      // [head_dim]
                          device const float2 *turns [[buffer(12)]],      // [rope_dim / 2]
                          constant AttentionArgs &a [[buffer(13)]],
                          uint3 group [[threadgroup_position_in_grid]],   // split, head, sequence
                          uint thread_index [[thread_index_in_threadgroup]],
                          uint lane [[thread_index_in_simdgroup]],
                          uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup float4 query[64];                            // [D4 / 4], scaled
    threadgroup float4 newest_key[64], newest_value[64];     // [D4 / 4], as the cache keeps them
    threadgroup float weights[SIMDGROUPS][32];               // [simdgroup, key]
    threadgroup ulong places[SIMDGROUPS][32];                // of those keys' values
    threadgroup float maxima[SIMDGROUPS], totals[SIMDGROUPS];
    threadgroup float4 gathered[SIMDGROUPS][64];             // [simdgroup, key group, D4 / 4]

    uint sequence = group.z, head = group.y, row = uint(query_start[sequence]);
    int context = context_lens[sequence];
    if (context <= 0 || query_start[sequence + 1] - int(row) != 1) return;
    uint begin = max(first_key(uint(context) - 1, a.window), group.x * SPLIT_KEYS);
    uint end = min(uint(context), (group.x + 1) * SPLIT_KEYS);
    if (begin >= end) return;                                // attend_combine skips it as well

    constexpr uint all = SIMDGROUPS * 32;
    uint sharing = a.heads / a.kv_heads, kv_head = head / sharing;
    device const float *q_head = q + ulong(row) * a.q_stride + head * HEAD_DIM;
    uint newest = uint(context) - 1;
    bool has_newest = ROPED && end > newest;                 // this split has it
    uint stored = has_newest ? newest : end;                 // keys before it are in the cache
    uint last = begin < stored ? stored : 0;                 // 0: there is no other key
    uint first = begin / 32 * 32 + simdgroup * 32, slot = 0, newest_slot = 0;
    device const int *table = block_tables + sequence * a.table_stride;
    if (first < last) slot = slot_of(table, clamp(first + lane, begin, last - 1));
    if (has_newest) newest_slot = slot_of(table, newest);
    if (ROPED) {
        device const float *k_head = k + ulong(row) * a.k_stride + kv_head * HEAD_DIM;
        device const float *v_head = v + ulong(row) * a.v_stride + kv_head * HEAD_DIM;
        if (simdgroup == 0) {
            threadgroup float *to = (threadgroup float *)query;
            rotate_head(to, false, a.scale, q_head, q_norm, turns, newest, lane, a);
        } else if (simdgroup == 1) {
            threadgroup float *to = (threadgroup float *)newest_key;
            rotate_head(to, true, 1.0f, k_head, k_norm, turns, newest, lane, a);
        } else if (simdgroup == 2) for (uint d = lane; d < D4; d += 32) {
            ((threadgroup float *)newest_value)[d] = d < HEAD_DIM ? kept(v_head[d]) : 0.0f;
        }
    } else for (uint d = thread_index; d < D4; d += all) {
        ((threadgroup float *)query)[d] = d < HEAD_DIM ? q_head[d] * a.scale : 0.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    uint at_once = CHUNKS < 32 ? 32 / CHUNKS : 1;            // keys that lanes take side by side
    uint chunk = lane % min(CHUNKS, 32u), key_group = CHUNKS < 32 ? lane / CHUNKS : 0;
    float best = -INFINITY, total = 0.0f;
    float4 values[2] = {float4(0.0f), float4(0.0f)};
    if (has_newest && simdgroup == 0) {
        float4 sums = float4(0.0f);
        for (uint c = lane; c < CHUNKS; c += 32) sums = fma(query[c], newest_key[c], sums);
        best = capped(simd_sum((sums.x + sums.y) + (sums.z + sums.w)), a);
        total = lane == 0 ? 1.0f : 0.0f;
        if (key_group == 0) {
            values[0] = newest_value[chunk];
            if (chunk + 32 < CHUNKS) values[1] = newest_value[chunk + 32];
        }
    }
    for (; first < last; first += all) {
        uint key = first + lane, keys = min(last - first, 32u);
        ulong at = k_row(slot, kv_head, a.kv_heads);
        float4 sums = float4(0.0f);
        for (uint c = 0; c < CHUNKS; c += TURN) {
            float4 k4[TURN];
            EACH_OF_TURN(t) {
                k4[t] = load_kv4(k_pool, at + min(c + t, CHUNKS - 1) * (BLOCK_SIZE * 4));
            }
            simdgroup_barrier(mem_flags::mem_none);
            EACH_OF_TURN(t) if (c + t < CHUNKS) sums = fma(query[c + t], k4[t], sums);
        }
        float2 pair = sums.xy + sums.zw;
        bool exists = key >= begin && key < last;
        float score = exists ? capped(pair.x + pair.y, a) : -INFINITY;
        float higher = max(best, simd_max(score));
        float base = higher == -INFINITY ? 0.0f : higher;    // never -inf - -inf
        float weight = exp(score - base), correction = exp(best - base);
        total = fma(total, correction, weight);
        best = higher;
        weights[simdgroup][lane] = weight;
        places[simdgroup][lane] = v_row(slot, kv_head, a.kv_heads);
        simdgroup_barrier(mem_flags::mem_threadgroup);       // weights and places are there
        values[0] *= correction;
        values[1] *= correction;
        for (uint from = 0; from < keys; from += TURN * at_once) {
            float4 v4[TURN][2];
            EACH_OF_TURN(t) {
                uint i = min(from + t * at_once + key_group, keys - 1);
                ulong place = places[simdgroup][i] + chunk * 4;
                v4[t][0] = load_kv4(v_pool, place);
                if (chunk + 32 < CHUNKS) v4[t][1] = load_kv4(v_pool, place + 128);
            }
            simdgroup_barrier(mem_flags::mem_none);
            EACH_OF_TURN(t) {
                uint i = from + t * at_once + key_group;
                float w = i < keys ? weights[simdgroup][min(i, 31u)] : 0.0f;
                values[0] = fma(float4(w), v4[t][0], values[0]);
                if (chunk + 32 < CHUNKS) values[1] = fma(float4(w), v4[t][1], values[1]);
            }
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);       // read before the next overwrite
        if (first + all < last) slot = slot_of(table, clamp(key + all, begin, last - 1));
    }

    // The simdgroups' results become one: lane i has what simdgroup i found.
    total = simd_sum(total);
    if (lane == 0) {
        maxima[simdgroup] = best;
        totals[simdgroup] = total;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float found = lane < SIMDGROUPS ? maxima[lane] : -INFINITY, highest = simd_max(found);
    float factor = found == -INFINITY ? 0.0f : exp(found - highest);
    float sum = simd_sum(lane < SIMDGROUPS ? totals[lane] * factor : 0.0f);
    factor = best == -INFINITY ? 0.0f : exp(best - highest); // this simdgroup's
    if (key_group < at_once) {
        threadgroup float4 *to = gathered[simdgroup] + key_group * CHUNKS + chunk;
        to[0] = values[0] * factor;
        if (chunk + 32 < CHUNKS) to[32] = values[1] * factor;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    ulong part = (ulong(sequence) * a.heads + head) * a.splits + group.x;
    device float *mine = partial + part * (HEAD_DIM + 2);
    for (uint d = thread_index; d < HEAD_DIM; d += all) {
        float value = 0.0f;
        for (uint i = 0; i < SIMDGROUPS; i++) {
            threadgroup float *of = (threadgroup float *)gathered[i];
            for (uint g = 0; g < at_once; g++) value += of[g * D4 + d];
        }
        if (a.splits > 1) mine[d] = value;
        else out[ulong(row) * a.out_stride + head * HEAD_DIM + d] = value / sum;
    }
    if (a.splits > 1 && thread_index == 0) {
        mine[HEAD_DIM] = highest;
        mine[HEAD_DIM + 1] = sum;
    }
    if (has_newest && head % sharing == 0 && thread_index < D4) {
        uint d = thread_index;
        ulong key = k_row(newest_slot, kv_head, a.kv_heads) + d / 4 * (BLOCK_SIZE * 4) + d % 4;
        store_kv(k_pool, key, ((threadgroup float *)newest_key)[d]);
        ulong value = v_row(newest_slot, kv_head, a.kv_heads) + d;
        store_kv(v_pool, value, ((threadgroup float *)newest_value)[d]);
    }
}
