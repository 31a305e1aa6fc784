// Exercise 11, scores: how much each query head looks at each key.
//
// Complete steps 1 to 4 and keep the names of the variables. Check:  python -m lessons.check 11
#include "attention.h"

struct NaiveArgs {
    uint queries, keys, heads, kv_heads;
    uint window;
    float scale, softcap;   // softcap 0: none
};

[[max_total_threads_per_threadgroup(256)]]
kernel void naive_scores(device const float *q [[buffer(0)]],   // [queries, heads, HEAD_DIM]
                         device const float *k [[buffer(1)]],   // [keys, kv_heads, HEAD_DIM]
                         device float *scores [[buffer(2)]],    // [heads, queries, keys]
                         constant NaiveArgs &a [[buffer(3)]],
                         uint i [[thread_position_in_grid]]) {
    // 1. Which score this thread has; nothing to do past the last one.
    uint key = 0;
    uint query = 0;
    uint head = 0;

    // 2. The KV head that this head shares with its neighbours.
    uint kv_head = 0;

    // 3. The dot product of query and key.
    float dot = 0.0f;

    // 4. Scaled, and capped where there is a cap.
    float score = dot;
    scores[i] = score;
}
