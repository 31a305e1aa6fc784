// Exercise 11, gather.
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
    uint d = i % HEAD_DIM;
    uint head = i / HEAD_DIM % a.kv_heads;
    uint key = i / HEAD_DIM / a.kv_heads;
    if (key >= a.keys) return;
    uint block = uint(table[key / BLOCK_SIZE]);
    uint slot = block * BLOCK_SIZE + key % BLOCK_SIZE;

    k[i] = load_kv4(k_pool, k_row(slot, head, a.kv_heads) + d / 4 * (BLOCK_SIZE * 4))[d % 4];
    v[i] = load_kv4(v_pool, v_row(slot, head, a.kv_heads) + d / 4 * 4)[d % 4];
}
