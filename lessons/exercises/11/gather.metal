// Exercise 11, gather: keys and values out of their blocks, into one piece.
//
// Complete steps 1 to 3 and keep the names of the variables. Check:  python -m lessons.check 11
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
    // 1. Which element this thread has; nothing to do past the last key.
    uint d = 0;
    uint head = 0;
    uint key = 0;

    // 2. Where the token is: its block, and its slot in the pool.
    uint block = 0;
    uint slot = 0;

    // 3. The element itself, of K and of V.
    ulong k_at = k_row(slot, head, a.kv_heads);
    ulong v_at = v_row(slot, head, a.kv_heads);
    k[i] = load_kv4(k_pool, k_at)[0];
    v[i] = load_kv4(v_pool, v_at)[0];
}
