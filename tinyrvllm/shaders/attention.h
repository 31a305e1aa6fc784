// What the paged attention kernels have in common.
#pragma once
#include "kv_cache.h"

struct AttentionArgs {   // mirrored by kernels/attention.py
    uint heads, kv_heads;
    uint q_stride, out_stride;   // floats from row to row
    uint table_stride;           // blocks a block table has room for
    uint window;                 // keys that a query sees, itself included; 0: all
    uint splits;                 // decode: parts that the longest context is cut into
    float scale, softcap;        // softcap 0: none
    uint rope_dim, k_stride, v_stride;   // attend_spread with ROPED: see rope.metal
    float norm_epsilon;
};

constant constexpr uint SPLIT_KEYS = 512;   // keys of a split; fixed, so that bits are too

// First key that the query at `position` sees.
inline uint first_key(uint position, uint window) {
    return window > 0 && position + 1 > window ? position + 1 - window : 0;
}

inline float capped(float score, constant AttentionArgs &a) {
    return a.softcap > 0.0f ? soft_cap(score, a.softcap) : score;
}
