// Exercise 11, scores.
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
    uint key = i % a.keys;
    uint query = i / a.keys % a.queries;
    uint head = i / a.keys / a.queries;
    bool inside = head < a.heads;

    uint kv_head = head / (a.heads / a.kv_heads);

    float dot = 0.0f;
    for (uint d = 0; inside && d < HEAD_DIM; d++) {
        dot = fma(q[(query * a.heads + head) * HEAD_DIM + d],
                  k[(key * a.kv_heads + kv_head) * HEAD_DIM + d], dot);
    }

    float score = dot * a.scale;
    if (a.softcap > 0.0f) score = soft_cap(score, a.softcap);
    if (inside) scores[i] = score;
}
