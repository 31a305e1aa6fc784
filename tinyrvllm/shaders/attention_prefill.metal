// attend_tile, attend_wide: paged attention for sequences with several queries, causal, with a
// sliding window if asked, straight from the blocks.
//
// Version ladder
//   1  gather, scores, mask, softmax, apply: a score matrix of queries x keys in device memory
//   2  attend_one for each query: K and V are read once per query
//   3  attend_tile: 32 queries share each tile of 32 keys (FlashAttention, Dao 2022), products by
//      simdgroup matrices, softmax online; two barriers a tile
//   4  attend_wide: for head_dim over 128 (64 for a float cache), where 3 would need 64 registers
//      a lane for the output and 34 KB of tiles: 8 queries, head_dim split over the simdgroups
//
// Design points
// 1. attend_tile: simdgroup s owns queries 8 s .. 8 s + 7 whole: their rows of Q (registers), of
//    the scores, and of the output (registers). Only K and V tiles are shared.
// 2. attend_wide: simdgroup s owns a quarter of head_dim for all 8 queries. Its slices of K and V
//    are its own (no barrier), partial scores are added over simdgroups through threadgroup memory,
//    and each simdgroup then repeats the small softmax for itself.
// 3. Softmax in a simdgroup: 8 rows x 32 keys, four neighbouring lanes a row, 8 keys each; row
//    maximum and sum by simd_shuffle_xor 1 and 2. No assumption on which lane holds which element
//    of a matrix: tiles pass through memory, and rows of the output are rescaled by multiplying
//    with a diagonal matrix of the corrections.
//
//        lane      0..3    4..7    ...  28..31
//        row       0       1       ...  7
//        keys      8 (lane % 4) .. 8 (lane % 4) + 7
//
// 4. Keys past the context are zeros in the tiles (a reused block may hold NaN there, and
//    0 * NaN would reach the output). Masked scores are -inf, so that exp gives 0.
// 5. Key tiles start at multiples of 32 whatever the chunk, and a query's sums depend on its own
//    row alone: chunks of a prompt give the bits of the whole prompt.
// 6. Registers a lane, attend_tile at head_dim 128: 32 for Q, 32 for the output, 8 for scores:
//    about 100 of the 128 we allow. attend_wide at 256: 16 + 16 + 8. Threadgroup memory: 22.5 KB,
//    attend_wide 28 KB.
#include <metal_simdgroup_matrix>

#include "attention.h"

constant constexpr uint SIMDGROUPS = 4, QUERIES = 8, MAX_TILES = 16;
constant constexpr uint SCORE_STRIDE = 36;   // 32 keys + 4 against bank conflicts
constant uint TILES = (HEAD_DIM + 7) / 8;    // 8-wide tiles of a head

// Where a sequence's queries are and which of them this threadgroup has.
struct Queries {
    uint row, count;            // first row, and how many of the wanted there are
    uint position, context;     // of the first query; tokens in the cache
};

inline Queries queries_of(device const int *query_start, device const int *context_lens,
                          uint sequence, uint tile, uint per_tile) {
    Queries q;
    int start = query_start[sequence], all = query_start[sequence + 1] - start;
    q.context = uint(max(context_lens[sequence], 0));
    bool any = all > 1 && tile * per_tile < uint(all) && q.context > 0;   // 1: attend_one's
    q.row = uint(start) + tile * per_tile;
    q.count = any ? min(per_tile, uint(all) - tile * per_tile) : 0;
    q.position = q.context - uint(all) + tile * per_tile;
    return q;
}

inline uint slot_of(device const int *table, uint key) {
    return uint(table[key / BLOCK_SIZE]) * BLOCK_SIZE + key % BLOCK_SIZE;
}

// `keys` keys from `first` on, `quads` float4 from `first_quad` on, into a tile [keys, stride] by
// `count` threads. Neighbouring threads take neighbouring keys, as K lies in its blocks.
template <typename T, typename T4>
inline void stage_k(threadgroup T *tile, uint stride, device const uchar *pool,
                    device const int *table, uint context, uint kv_head, uint kv_heads, uint first,
                    uint keys, uint first_quad, uint quads, uint index, uint count) {
    for (uint e = index; e < keys * quads; e += count) {
        uint key = e % keys, quad = first_quad + e / keys;
        float4 value = float4(0.0f);
        if (first + key < context && quad < D4 / 4) {
            ulong at = k_row(slot_of(table, first + key), kv_head, kv_heads);
            value = load_kv4(pool, at + quad * (BLOCK_SIZE * 4));
        }
        *(threadgroup T4 *)(tile + key * stride + (quad - first_quad) * 4) = T4(value);
    }
}

// The same for V, where neighbouring threads take neighbouring dimensions.
template <typename T, typename T4>
inline void stage_v(threadgroup T *tile, uint stride, device const uchar *pool,
                    device const int *table, uint context, uint kv_head, uint kv_heads, uint first,
                    uint keys, uint first_quad, uint quads, uint index, uint count) {
    for (uint e = index; e < keys * quads; e += count) {
        uint key = e / quads, quad = first_quad + e % quads;
        float4 value = float4(0.0f);
        if (first + key < context && quad < D4 / 4) {
            ulong at = v_row(slot_of(table, first + key), kv_head, kv_heads);
            value = load_kv4(pool, at + quad * 4);
        }
        *(threadgroup T4 *)(tile + key * stride + (quad - first_quad) * 4) = T4(value);
    }
}

// Tiles `first_tile`.. of 8 query rows into registers, through 8 x 32 floats of scratch.
template <ushort COUNT>
inline void load_queries(thread simdgroup_float8x8 *tiles, device const float *q, Queries my,
                         uint head, uint first_tile, threadgroup float *scratch, uint lane,
                         constant AttentionArgs &a) {
    UNROLL for (ushort t = 0; t < COUNT; t += 4) if (first_tile + t < TILES) {
        for (uint e = lane; e < QUERIES * 32; e += 32) {
            uint r = e / 32, d = (first_tile + t) * 8 + e % 32;
            float value = 0.0f;
            if (r < my.count && d < HEAD_DIM) {
                value = q[ulong(my.row + r) * a.q_stride + head * HEAD_DIM + d] * a.scale;
            }
            scratch[r * SCORE_STRIDE + e % 32] = value;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        UNROLL for (ushort i = 0; i < 4; i++) {
            simdgroup_load(tiles[t + i], scratch + i * 8, SCORE_STRIDE);
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
}

// One step of the online softmax for this lane's part of its row. `score` comes masked and leaves
// as weights; the row's running maximum and sum are kept in all four of its lanes.
template <ushort COUNT>
inline float softmax_step(thread float *score, thread float &best, thread float &total) {
    float highest = best;
    UNROLL for (ushort i = 0; i < COUNT; i++) highest = max(highest, score[i]);
    highest = max(highest, simd_shuffle_xor(highest, 1));
    highest = max(highest, simd_shuffle_xor(highest, 2));
    float base = highest == -INFINITY ? 0.0f : highest, sum = 0.0f;
    UNROLL for (ushort i = 0; i < COUNT; i++) {
        score[i] = exp(score[i] - base);
        sum += score[i];
    }
    sum += simd_shuffle_xor(sum, 1);
    sum += simd_shuffle_xor(sum, 2);
    float correction = exp(best - base);
    total = fma(total, correction, sum);
    best = highest;
    return correction;
}

inline float masked(float score, uint key, uint position, uint context, constant AttentionArgs &a) {
    bool sees = key <= position && key >= first_key(position, a.window) && key < context;
    return sees ? capped(score, a) : -INFINITY;
}

// A diagonal matrix of the rows' corrections: lane l writes two elements of row l / 4.
inline void store_diagonal(threadgroup float *diagonal, float value, uint lane) {
    uint row = lane / 4, column = lane % 4 * 2;
    diagonal[row * 8 + column] = column == row ? value : 0.0f;
    diagonal[row * 8 + column + 1] = column + 1 == row ? value : 0.0f;
}

// Divides by the rows' sums and writes, 32 dimensions at a time, through the score scratch.
template <ushort COUNT>
inline void store_output(thread simdgroup_float8x8 *tiles, device float *out, Queries my, uint head,
                         uint first_tile, float total, threadgroup float *scratch, uint lane,
                         constant AttentionArgs &a) {
    UNROLL for (ushort t = 0; t < COUNT; t += 4) if (first_tile + t < TILES) {
        simdgroup_barrier(mem_flags::mem_threadgroup);
        UNROLL for (ushort i = 0; i < 4; i++) {
            simdgroup_store(tiles[t + i], scratch + i * 8, SCORE_STRIDE);
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        uint r = lane / 4;
        for (ushort i = 0; i < 8 && r < my.count; i++) {
            uint column = lane % 4 * 8 + i, d = (first_tile + t) * 8 + column;
            if (d < HEAD_DIM) {
                out[ulong(my.row + r) * a.out_stride + head * HEAD_DIM + d] =
                    scratch[r * SCORE_STRIDE + column] / total;
            }
        }
    }
}

// The queries of one simdgroup of a tile.
inline Queries rows_from(Queries all, uint first) {
    Queries my = all;
    my.row += first;
    my.position += first;
    my.count = all.count > first ? min(all.count - first, QUERIES) : 0;
    return my;
}

template <typename T, typename T4, uint STRIDE>
inline void attend_tile_as(threadgroup T *k_tile, threadgroup T *v_tile,
                           threadgroup float *scores, threadgroup float *diagonals,
                           device const float *q, device const uchar *k_pool,
                           device const uchar *v_pool, device const int *table,
                           device float *out, Queries all, constant AttentionArgs &a, uint head,
                           uint thread_index, uint lane, uint simdgroup) {
    constexpr uint keys = 32;
    threadgroup float *score_tile = scores + simdgroup * QUERIES * SCORE_STRIDE;
    threadgroup float *diagonal = diagonals + simdgroup * 64;
    uint kv_head = head / (a.heads / a.kv_heads), quads = TILES * 2;
    Queries my = rows_from(all, simdgroup * QUERIES);
    uint position = my.position + lane / 4;                  // of this lane's row

    simdgroup_float8x8 queries[MAX_TILES], values[MAX_TILES];
    load_queries<MAX_TILES>(queries, q, my, head, 0, score_tile, lane, a);
    UNROLL for (ushort t = 0; t < MAX_TILES; t++) values[t] = simdgroup_float8x8(0.0f);
    float best = -INFINITY, total = 0.0f;

    uint begin = first_key(all.position, a.window) / keys * keys;
    uint end = all.position + all.count;                     // first key that no query sees
    for (uint first = begin; first < end; first += keys) {
        stage_k<T, T4>(k_tile, STRIDE, k_pool, table, all.context, kv_head, a.kv_heads, first, keys,
                       0, quads, thread_index, SIMDGROUPS * 32);
        stage_v<T, T4>(v_tile, STRIDE, v_pool, table, all.context, kv_head, a.kv_heads, first, keys,
                       0, quads, thread_index, SIMDGROUPS * 32);
        threadgroup_barrier(mem_flags::mem_threadgroup);     // the tiles are complete
        UNROLL for (ushort j = 0; j < keys / 8; j++) {
            simdgroup_float8x8 sum = simdgroup_float8x8(0.0f);
            UNROLL for (ushort t = 0; t < MAX_TILES; t++) if (t < TILES) {
                simdgroup_matrix<T, 8, 8> k;
                simdgroup_load(k, k_tile + j * 8 * STRIDE + t * 8, STRIDE, ulong2(0, 0), true);
                simdgroup_multiply_accumulate(sum, queries[t], k, sum);
            }
            simdgroup_store(sum, score_tile + j * 8, SCORE_STRIDE);
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        float score[8];
        threadgroup float *mine = score_tile + lane / 4 * SCORE_STRIDE + lane % 4 * 8;
        for (ushort i = 0; i < 8; i++) {
            score[i] = masked(mine[i], first + lane % 4 * 8 + i, position, all.context, a);
        }
        float correction = softmax_step<8>(score, best, total);
        for (ushort i = 0; i < 8; i++) mine[i] = score[i];
        store_diagonal(diagonal, correction, lane);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_float8x8 scale, weights[keys / 8];
        simdgroup_load(scale, diagonal, 8);
        UNROLL for (ushort j = 0; j < keys / 8; j++) {
            simdgroup_load(weights[j], score_tile + j * 8, SCORE_STRIDE);
        }
        UNROLL for (ushort t = 0; t < MAX_TILES; t++) if (t < TILES) {
            simdgroup_multiply(values[t], scale, values[t]);
            UNROLL for (ushort j = 0; j < keys / 8; j++) {
                simdgroup_matrix<T, 8, 8> v;
                simdgroup_load(v, v_tile + j * 8 * STRIDE + t * 8, STRIDE);
                simdgroup_multiply_accumulate(values[t], weights[j], v, values[t]);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);     // the tiles may be overwritten
    }
    store_output<MAX_TILES>(values, out, my, head, 0, total, score_tile, lane, a);
}

template <typename T, typename T4, uint STRIDE, ushort KEYS>
inline void attend_wide_as(threadgroup T *tiles, threadgroup float *scores,
                           threadgroup float *weights, threadgroup float *diagonals,
                           device const float *q,
                           device const uchar *k_pool, device const uchar *v_pool,
                           device const int *table, device float *out, Queries my,
                           constant AttentionArgs &a, uint head, uint lane, uint simdgroup) {
    constexpr ushort mine_tiles = 8;                         // of 8 dimensions: 64 a simdgroup
    threadgroup T *tile = tiles + simdgroup * KEYS * STRIDE;   // this simdgroup's slice
    threadgroup float *partial = scores + simdgroup * QUERIES * SCORE_STRIDE;
    threadgroup float *weight_tile = weights + simdgroup * QUERIES * SCORE_STRIDE;
    threadgroup float *diagonal = diagonals + simdgroup * 64;
    uint kv_head = head / (a.heads / a.kv_heads);
    uint first_tile = simdgroup * mine_tiles, first_quad = first_tile * 2;
    uint tile_count = TILES > first_tile ? min(TILES - first_tile, uint(mine_tiles)) : 0;
    uint position = my.position + lane / 4, quads = tile_count * 2;

    simdgroup_float8x8 queries[mine_tiles], values[mine_tiles];
    load_queries<mine_tiles>(queries, q, my, head, first_tile, weight_tile, lane, a);
    UNROLL for (ushort t = 0; t < mine_tiles; t++) values[t] = simdgroup_float8x8(0.0f);
    float best = -INFINITY, total = 0.0f;

    uint begin = first_key(my.position, a.window) / KEYS * KEYS, end = my.position + my.count;
    for (uint first = begin; first < end; first += KEYS) {
        stage_k<T, T4>(tile, STRIDE, k_pool, table, my.context, kv_head, a.kv_heads, first, KEYS,
                       first_quad, quads, lane, 32);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        UNROLL for (ushort j = 0; j < KEYS / 8; j++) {
            simdgroup_float8x8 sum = simdgroup_float8x8(0.0f);
            UNROLL for (ushort t = 0; t < mine_tiles; t++) if (t < tile_count) {
                simdgroup_matrix<T, 8, 8> k;
                simdgroup_load(k, tile + j * 8 * STRIDE + t * 8, STRIDE, ulong2(0, 0), true);
                simdgroup_multiply_accumulate(sum, queries[t], k, sum);
            }
            simdgroup_store(sum, partial + j * 8, SCORE_STRIDE);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);     // all partial scores are there
        constexpr ushort each = KEYS / 4;                    // keys of a lane
        float score[each];
        uint at = lane / 4 * SCORE_STRIDE + lane % 4 * each;
        for (ushort i = 0; i < each; i++) {
            float sum = 0.0f;
            for (uint s = 0; s < SIMDGROUPS; s++) {
                sum += scores[s * QUERIES * SCORE_STRIDE + at + i];
            }
            score[i] = masked(sum, first + lane % 4 * each + i, position, my.context, a);
        }
        float correction = softmax_step<each>(score, best, total);
        for (ushort i = 0; i < each; i++) weight_tile[at + i] = score[i];
        store_diagonal(diagonal, correction, lane);
        stage_v<T, T4>(tile, STRIDE, v_pool, table, my.context, kv_head, a.kv_heads, first, KEYS,
                       first_quad, quads, lane, 32);
        threadgroup_barrier(mem_flags::mem_threadgroup);     // scores may be overwritten
        simdgroup_float8x8 scale;
        simdgroup_load(scale, diagonal, 8);
        UNROLL for (ushort t = 0; t < mine_tiles; t++) if (t < tile_count) {
            simdgroup_multiply(values[t], scale, values[t]);
            UNROLL for (ushort j = 0; j < KEYS / 8; j++) {
                simdgroup_float8x8 w;
                simdgroup_matrix<T, 8, 8> v;
                simdgroup_load(w, weight_tile + j * 8, SCORE_STRIDE);
                simdgroup_load(v, tile + j * 8 * STRIDE + t * 8, STRIDE);
                simdgroup_multiply_accumulate(values[t], w, v, values[t]);
            }
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);       // the slice may be overwritten
    }
    store_output<mine_tiles>(values, out, my, head, first_tile, total, weight_tile, lane, a);
}

#define PREFILL_ARGUMENTS                                                                       \
    device const float *q [[buffer(0)]], device const uchar *k_pool [[buffer(1)]],              \
    device const uchar *v_pool [[buffer(2)]], device const int *block_tables [[buffer(3)]],     \
    device const int *context_lens [[buffer(4)]], device const int *query_start [[buffer(5)]],  \
    device float *out [[buffer(6)]], constant AttentionArgs &a [[buffer(7)]],                   \
    uint3 group [[threadgroup_position_in_grid]], /* tile of queries, head, sequence */         \
    uint thread_index [[thread_index_in_threadgroup]],                                          \
    uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]

// head_dim up to 128 (half cache) or 64 (float cache): 32 x 136 halves are 32 x 68 floats.
[[max_total_threads_per_threadgroup(128)]]
kernel void attend_tile(PREFILL_ARGUMENTS) {
    alignas(16) threadgroup float tiles[2][32 * 68];
    alignas(16) threadgroup float scores[SIMDGROUPS * QUERIES * SCORE_STRIDE];
    alignas(16) threadgroup float diagonals[SIMDGROUPS * 64];
    Queries all = queries_of(query_start, context_lens, group.z, group.x, SIMDGROUPS * QUERIES);
    if (all.count == 0) return;
    device const int *table = block_tables + group.z * a.table_stride;
    if (KV_F32) {
        attend_tile_as<float, float4, 68>(tiles[0], tiles[1], scores, diagonals, q, k_pool, v_pool,
                                          table, out, all, a, group.y, thread_index, lane,
                                          simdgroup);
    } else {
        attend_tile_as<half, half4, 136>((threadgroup half *)tiles[0], (threadgroup half *)tiles[1],
                                         scores, diagonals, q, k_pool, v_pool, table, out, all, a,
                                         group.y, thread_index, lane, simdgroup);
    }
}

// head_dim up to 256.
[[max_total_threads_per_threadgroup(128)]]
kernel void attend_wide(PREFILL_ARGUMENTS) {
    alignas(16) threadgroup float tiles[SIMDGROUPS * 16 * 72];   // 32 keys of half, 16 of float
    alignas(16) threadgroup float scores[SIMDGROUPS * QUERIES * SCORE_STRIDE];
    alignas(16) threadgroup float weights[SIMDGROUPS * QUERIES * SCORE_STRIDE];
    alignas(16) threadgroup float diagonals[SIMDGROUPS * 64];
    Queries my = queries_of(query_start, context_lens, group.z, group.x, QUERIES);
    if (my.count == 0) return;
    device const int *table = block_tables + group.z * a.table_stride;
    if (KV_F32) {
        attend_wide_as<float, float4, 68, 16>(tiles, scores, weights, diagonals, q, k_pool, v_pool,
                                              table, out, my, a, group.y, lane, simdgroup);
    } else {
        attend_wide_as<half, half4, 72, 32>((threadgroup half *)tiles, scores, weights, diagonals,
                                            q, k_pool, v_pool, table, out, my, a, group.y, lane,
                                            simdgroup);
    }
}
