// The paged KV cache: where element d of a key or value lies.
//
// A pool per layer for K and one for V, cut into blocks of BLOCK_SIZE tokens. A sequence owns
// blocks in any order; its block table lists them; slot = block * BLOCK_SIZE + place in block.
//
//   V [blocks, kv_heads, BLOCK_SIZE, D4]        D4 = head_dim rounded up to 4, the rest is zero
//   K [blocks, kv_heads, D4 / 4, BLOCK_SIZE, 4]
//
// K is turned inside each block so that 32 lanes that hold 32 tokens read neighbouring addresses
// (8 bytes each in F16): a lane then computes a whole score by itself, with no reduction. V is
// read with lanes along head_dim. (vLLM's cache has the same two orders.)
#pragma once
#include "common.h"

constant bool KV_F32 [[function_constant(20)]];       // float cache; half otherwise
constant uint BLOCK_SIZE [[function_constant(21)]];   // tokens in a block
constant uint HEAD_DIM [[function_constant(22)]];
constant uint D4 = (HEAD_DIM + 3) / 4 * 4;

// First element of a token's V row; 64 bits, because a pool may exceed 2^32 elements.
inline ulong v_row(uint slot, uint head, uint kv_heads) {
    uint block = slot / BLOCK_SIZE, place = slot % BLOCK_SIZE;
    return (ulong(block) * kv_heads + head) * (BLOCK_SIZE * D4) + place * D4;
}

// First element of a token's K; four elements later dimensions follow BLOCK_SIZE * 4 apart.
inline ulong k_row(uint slot, uint head, uint kv_heads) {
    uint block = slot / BLOCK_SIZE, place = slot % BLOCK_SIZE;
    return (ulong(block) * kv_heads + head) * (BLOCK_SIZE * D4) + place * 4;
}

inline float4 load_kv4(device const uchar *pool, ulong index) {
    if (KV_F32) return *(device const float4 *)(pool + index * 4);
    return float4(*(device const half4 *)(pool + index * 2));
}

// A number as the cache keeps it.
inline float kept(float value) { return KV_F32 ? value : float(half(value)); }

inline void store_kv(device uchar *pool, ulong index, float value) {
    if (KV_F32) *(device float *)(pool + index * 4) = value;
    else *(device half *)(pool + index * 2) = half(value);
}
