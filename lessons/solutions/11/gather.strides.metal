// Exercise 11, gather, another right answer: addresses from the layout's own strides.
#include "attention.h"

struct NaiveArgs {
    uint queries, keys, heads, kv_heads;
    uint window;
    float scale, softcap;   // softcap 0: none
};

[[max_total_threads_per_threadgroup(256)]]
kernel void naive_gather(device const uchar *k_pool [[buffer(0)]],
                         device const uchar *v_pool [[buffer(1)]],
                         device const int *table [[buffer(2)]],   // the blocks of the sequence
                         device float *k [[buffer(3)]],           // [keys, kv_heads, HEAD_DIM]
                         device float *v [[buffer(4)]],           // [keys, kv_heads, HEAD_DIM]
                         constant NaiveArgs &a [[buffer(5)]],
                         uint i [[thread_position_in_grid]]) {
    uint row = i / HEAD_DIM, d = i - row * HEAD_DIM;
    uint key = row / a.kv_heads, head = row - key * a.kv_heads;
    if (i >= a.keys * a.kv_heads * HEAD_DIM) return;
    uint place = key % BLOCK_SIZE;
    ulong first = (ulong(table[key / BLOCK_SIZE]) * a.kv_heads + head) * BLOCK_SIZE * D4;
    float4 four = load_kv4(k_pool, first + (d / 4 * BLOCK_SIZE + place) * 4);
    k[i] = four[d % 4];
    v[i] = load_kv4(v_pool, first + place * D4 + d - d % 4)[d % 4];
}
