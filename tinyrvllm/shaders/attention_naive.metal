// The first version of paged attention: five kernels, each with one idea. Lesson 11 starts here,
// and the fused kernels are checked against it on the device.
//
//   gather    the sequence's keys and values, out of their blocks, into [keys, kv_heads, head_dim]
//   scores    q . k * scale for every head and key        -> [heads, queries, keys]
//   mask      -inf where the query may not look
//   softmax   reduce.metal's, a row for each head and query
//   apply     weights . values                            -> [queries, heads, head_dim]
//
// 1. What it costs beside the fused kernel: K and V are read, written and read again, and the
//    score matrix crosses the memory bus five times.
// 2. One sequence at a time, one thread an element: the sums run in index order.
#include "attention.h"

struct NaiveArgs {   // mirrored by kernels/attention_naive.py
    uint queries, keys, heads, kv_heads;
    uint window;     // 0: none
    float scale, softcap;
};

[[max_total_threads_per_threadgroup(256)]]
kernel void naive_gather(device const uchar *k_pool [[buffer(0)]],
                         device const uchar *v_pool [[buffer(1)]],
                         device const int *table [[buffer(2)]],
                         device float *k [[buffer(3)]], device float *v [[buffer(4)]],
                         constant NaiveArgs &a [[buffer(5)]],
                         uint i [[thread_position_in_grid]]) {
    uint d = i % HEAD_DIM, head = i / HEAD_DIM % a.kv_heads, key = i / HEAD_DIM / a.kv_heads;
    if (key >= a.keys) return;
    uint slot = uint(table[key / BLOCK_SIZE]) * BLOCK_SIZE + key % BLOCK_SIZE;
    ulong at = k_row(slot, head, a.kv_heads) + d / 4 * (BLOCK_SIZE * 4);
    k[i] = load_kv4(k_pool, at)[d % 4];
    v[i] = load_kv4(v_pool, v_row(slot, head, a.kv_heads) + d / 4 * 4)[d % 4];
}

[[max_total_threads_per_threadgroup(256)]]
kernel void naive_scores(device const float *q [[buffer(0)]],   // [queries, heads, head_dim]
                         device const float *k [[buffer(1)]],   // [keys, kv_heads, head_dim]
                         device float *scores [[buffer(2)]],    // [heads, queries, keys]
                         constant NaiveArgs &a [[buffer(3)]],
                         uint i [[thread_position_in_grid]]) {
    uint key = i % a.keys, query = i / a.keys % a.queries, head = i / a.keys / a.queries;
    if (head >= a.heads) return;
    uint kv_head = head / (a.heads / a.kv_heads);
    float sum = 0.0f;
    for (uint d = 0; d < HEAD_DIM; d++) {
        sum = fma(q[(query * a.heads + head) * HEAD_DIM + d],
                  k[(key * a.kv_heads + kv_head) * HEAD_DIM + d], sum);
    }
    sum *= a.scale;
    scores[i] = a.softcap > 0.0f ? soft_cap(sum, a.softcap) : sum;
}

[[max_total_threads_per_threadgroup(256)]]
kernel void naive_mask(device float *scores [[buffer(0)]], constant NaiveArgs &a [[buffer(1)]],
                       uint i [[thread_position_in_grid]]) {
    uint key = i % a.keys, query = i / a.keys % a.queries;
    if (i >= a.heads * a.queries * a.keys) return;
    uint position = a.keys - a.queries + query;
    if (key > position || key < first_key(position, a.window)) scores[i] = -INFINITY;
}

[[max_total_threads_per_threadgroup(256)]]
kernel void naive_apply(device const float *weights [[buffer(0)]],   // [heads, queries, keys]
                        device const float *v [[buffer(1)]],         // [keys, kv_heads, head_dim]
                        device float *out [[buffer(2)]],             // [queries, heads, head_dim]
                        constant NaiveArgs &a [[buffer(3)]],
                        uint i [[thread_position_in_grid]]) {
    uint d = i % HEAD_DIM, head = i / HEAD_DIM % a.heads, query = i / HEAD_DIM / a.heads;
    if (query >= a.queries) return;
    uint kv_head = head / (a.heads / a.kv_heads);
    float sum = 0.0f;
    for (uint key = 0; key < a.keys; key++) {
        sum = fma(weights[(head * a.queries + query) * a.keys + key],
                  v[(key * a.kv_heads + kv_head) * HEAD_DIM + d], sum);
    }
    out[i] = sum;
}
