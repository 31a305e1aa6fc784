// Exercise 11, scores, another right answer: pointers to the two vectors, two partial sums.
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
    if (i >= a.heads * a.queries * a.keys) return;
    uint head = i / (a.queries * a.keys), query = i / a.keys - head * a.queries, key = i % a.keys;
    uint kv_head = head * a.kv_heads / a.heads;
    device const float *one = q + (query * a.heads + head) * HEAD_DIM;
    device const float *other = k + (key * a.kv_heads + kv_head) * HEAD_DIM;
    float even = 0.0f, odd = 0.0f;
    for (uint d = 0; d < HEAD_DIM; d++) {
        if (d % 2) odd += one[d] * other[d];
        else even += one[d] * other[d];
    }
    float score = (even + odd) * a.scale;
    scores[i] = a.softcap > 0.0f ? a.softcap * tanh(score / a.softcap) : score;
}
