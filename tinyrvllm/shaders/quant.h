// One dequantiser per weight type, shared by embedding, matvec, ksplit and gemm.
//
// The unit is 16 consecutive weights of one row: `load_weights(row, unit)` gives them as four
// float4. Every GGUF block holds a whole number of units (32 weights: 2, 256 weights: 16), and
// 16 contiguous weights never cross a scale group of any type, so a unit has one scale.
//
// 1. Weights stay as the file has them; WEIGHT_TYPE is a function constant, so a pipeline
//    contains one branch of the switch below and nothing of the others.
// 2. Blocks are 18, 20, 22, 34 or 210 bytes long: only 2-byte alignment can be counted on. All
//    loads are packed vectors, one instruction each on Apple's GPU, which takes any alignment
//    of the element.
// 3. The two units of a 4-bit block sit in the low and the high nibbles of the same 16 bytes.
//    Two neighbouring lanes load the same bytes: one access to the cache, and no shuffling.
// 4. Four nibbles are masked out of one 32-bit word at a time, then widened by float4(uchar4).
//
//    Q4_0   d | q0|q16  q1|q17 ... q15|q31         unit 0 = low nibbles, unit 1 = high nibbles
//           2   1 byte each, 16 bytes
//
// Layouts: ggml's ggml-common.h; tested against the `gguf` package's numpy dequantisers.
#pragma once
#include "common.h"

// The numbers are GGUF's own (gguf.GGMLQuantizationType).
enum WeightType : uint {
    F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8,
    Q4_K = 12, Q5_K = 13, Q6_K = 14, BF16 = 30
};
constant uint WEIGHT_TYPE [[function_constant(0)]];
// Only unquantised rows can end in the middle of a unit.
constant bool RAGGED = WEIGHT_TYPE == F32 || WEIGHT_TYPE == F16 || WEIGHT_TYPE == BF16;

struct Weights { float4 v[4]; };   // 16 consecutive weights of a row

inline float load_half(device const uchar *p) { return float(*(device const half *)p); }

inline uint2 load_8_bytes(device const uchar *p) {
    return as_type<uint2>(ushort4(*(device const packed_ushort4 *)p));
}

inline float4 widen(uint bytes) { return float4(as_type<uchar4>(bytes)); }

// Bits 0..3 of `bits` become bit 4 of bytes 0..3: the fifth bits of four 5-bit weights. The
// multiplication copies the four bits to distances of 7, so that bit i lands on bit 8 i.
inline uint fifth_bits(uint bits) { return (((bits & 0xFu) * 0x00204081u) & 0x01010101u) << 4; }

// The four words of a unit's 16 nibbles: low ones for shift 0, high ones for shift 4.
inline void load_nibbles(device const uchar *p, uint shift, thread uint *words) {
    uint2 a = load_8_bytes(p) >> shift, b = load_8_bytes(p + 8) >> shift;
    words[0] = a.x & 0x0F0F0F0Fu;
    words[1] = a.y & 0x0F0F0F0Fu;
    words[2] = b.x & 0x0F0F0F0Fu;
    words[3] = b.y & 0x0F0F0F0Fu;
}

// weights = scale * (q - zero), exactly as ggml computes them.
inline Weights centred(thread const uint *words, float scale, float zero) {
    Weights w;
    for (ushort i = 0; i < 4; i++) w.v[i] = (widen(words[i]) - zero) * scale;
    return w;
}

// weights = scale * q + shift
inline Weights affine(thread const uint *words, float scale, float shift) {
    Weights w;
    for (ushort i = 0; i < 4; i++) w.v[i] = fma(widen(words[i]), float4(scale), float4(shift));
    return w;
}

inline Weights load_q8_0(device const uchar *row, uint unit) {
    device const uchar *block = row + unit / 2 * 34;                 // half d; char q[32]
    device const packed_char4 *q = (device const packed_char4 *)(block + 2 + unit % 2 * 16);
    float d = load_half(block);
    Weights w;
    for (ushort i = 0; i < 4; i++) w.v[i] = float4(char4(q[i])) * d;
    return w;
}

inline Weights load_q4_0(device const uchar *row, uint unit) {
    device const uchar *block = row + unit / 2 * 18;                 // half d; nibbles[16]
    uint words[4];
    load_nibbles(block + 2, unit % 2 * 4, words);
    return centred(words, load_half(block), 8.0f);
}

inline Weights load_q4_1(device const uchar *row, uint unit) {
    device const uchar *block = row + unit / 2 * 20;                 // half d, m; nibbles[16]
    uint words[4];
    load_nibbles(block + 4, unit % 2 * 4, words);
    return affine(words, load_half(block), load_half(block + 2));
}

inline Weights load_q5_0(device const uchar *row, uint unit) {
    device const uchar *block = row + unit / 2 * 22;                 // half d; bits[4]; nibbles[16]
    uint words[4], high = *(device const ushort *)(block + 2 + unit % 2 * 2);
    load_nibbles(block + 6, unit % 2 * 4, words);
    for (ushort i = 0; i < 4; i++) words[i] |= fifth_bits(high >> (4 * i));
    return centred(words, load_half(block), 16.0f);
}

inline Weights load_q5_1(device const uchar *row, uint unit) {
    device const uchar *block = row + unit / 2 * 24;                 // half d, m; bits[4]; nibbles[16]
    uint words[4], high = *(device const ushort *)(block + 4 + unit % 2 * 2);
    load_nibbles(block + 8, unit % 2 * 4, words);
    for (ushort i = 0; i < 4; i++) words[i] |= fifth_bits(high >> (4 * i));
    return affine(words, load_half(block), load_half(block + 2));
}

// Scale and minimum of 32-weight group j of a K-quant super-block: 6 bits each, packed in 12
// bytes. Groups 0..3 have theirs in the low 6 bits; 4..7 take 4 low bits from bytes 8..11 and
// 2 high bits from the top of bytes 0..7.
inline float2 k_scale_min(device const uchar *s, uint j) {
    if (j < 4) return float2(s[j] & 63, s[j + 4] & 63);
    return float2((s[j + 4] & 15) | (s[j - 4] >> 6 << 4), (s[j + 4] >> 4) | (s[j] >> 6 << 4));
}

inline Weights load_q4_k(device const uchar *row, uint unit) {
    device const uchar *block = row + unit / 16 * 144;   // half d, dmin; scales[12]; nibbles[128]
    uint j = unit % 16 / 2, words[4];
    float2 scale_min = k_scale_min(block + 4, j);
    load_nibbles(block + 16 + j / 2 * 32 + unit % 2 * 16, j % 2 * 4, words);
    return affine(words, load_half(block) * scale_min.x, -load_half(block + 2) * scale_min.y);
}

inline Weights load_q5_k(device const uchar *row, uint unit) {
    device const uchar *block = row + unit / 16 * 176;   // ...; scales[12]; bits[32]; nibbles[128]
    uint j = unit % 16 / 2, words[4];
    float2 scale_min = k_scale_min(block + 4, j);
    device const uchar *bits = block + 16 + unit % 2 * 16;
    load_nibbles(block + 48 + j / 2 * 32 + unit % 2 * 16, j % 2 * 4, words);
    uint2 a = load_8_bytes(bits) >> j, b = load_8_bytes(bits + 8) >> j;   // bit j of each byte
    words[0] |= (a.x & 0x01010101u) << 4;
    words[1] |= (a.y & 0x01010101u) << 4;
    words[2] |= (b.x & 0x01010101u) << 4;
    words[3] |= (b.y & 0x01010101u) << 4;
    return affine(words, load_half(block) * scale_min.x, -load_half(block + 2) * scale_min.y);
}

inline Weights load_q6_k(device const uchar *row, uint unit) {
    // nibbles[128]; two bits[64]; char scales[16]; half d. A half of 128 weights is 8 units: units
    // 0..3 are low nibbles and 4..7 high ones of the same 64 bytes; quarter q (two units) has its
    // upper bits at bits 2q and 2q + 1 of 32 bytes.
    device const uchar *block = row + unit / 16 * 210;
    uint half_index = unit % 16 / 8, quarter = unit % 8 / 2, words[4];
    load_nibbles(block + half_index * 64 + unit % 4 * 16, quarter / 2 * 4, words);
    device const uchar *bits = block + 128 + half_index * 32 + unit % 2 * 16;
    uint2 a = load_8_bytes(bits) >> (2 * quarter), b = load_8_bytes(bits + 8) >> (2 * quarter);
    words[0] |= (a.x & 0x03030303u) << 4;
    words[1] |= (a.y & 0x03030303u) << 4;
    words[2] |= (b.x & 0x03030303u) << 4;
    words[3] |= (b.y & 0x03030303u) << 4;
    float scale = float(*(device const char *)(block + 192 + unit % 16));
    return centred(words, load_half(block + 208) * scale, 32.0f);
}

inline Weights load_f32(device const uchar *row, uint unit) {
    device const packed_float4 *p = (device const packed_float4 *)(row + unit * 64);
    Weights w;
    for (ushort i = 0; i < 4; i++) w.v[i] = float4(p[i]);
    return w;
}

inline Weights load_f16(device const uchar *row, uint unit) {
    device const packed_half4 *p = (device const packed_half4 *)(row + unit * 32);
    Weights w;
    for (ushort i = 0; i < 4; i++) w.v[i] = float4(half4(p[i]));
    return w;
}

// bfloat16 is the upper half of a float32, so this needs no bfloat support (Metal 3.1).
inline Weights load_bf16(device const uchar *row, uint unit) {
    device const packed_ushort4 *p = (device const packed_ushort4 *)(row + unit * 32);
    Weights w;
    for (ushort i = 0; i < 4; i++) w.v[i] = as_type<float4>(uint4(ushort4(p[i])) << 16);
    return w;
}

// 16 weights of a row, from weight 16 * unit on; all of them must exist.
inline Weights load_weights(device const uchar *row, uint unit) {
    switch (WEIGHT_TYPE) {
        case F32: return load_f32(row, unit);
        case F16: return load_f16(row, unit);
        case Q4_0: return load_q4_0(row, unit);
        case Q4_1: return load_q4_1(row, unit);
        case Q5_0: return load_q5_0(row, unit);
        case Q5_1: return load_q5_1(row, unit);
        case Q8_0: return load_q8_0(row, unit);
        case Q4_K: return load_q4_k(row, unit);
        case Q5_K: return load_q5_k(row, unit);
        case Q6_K: return load_q6_k(row, unit);
        default: return load_bf16(row, unit);
    }
}

// The last unit of a row whose length is no multiple of 16: only unquantised types have one.
// Weights from `columns` on count as 0.
inline Weights load_weights_tail(device const uchar *row, uint unit, uint columns) {
    Weights w;
    for (ushort i = 0; i < 4; i++) {
        for (ushort j = 0; j < 4; j++) {
            uint k = unit * 16 + i * 4 + j;
            float value = 0.0f;
            if (k < columns) {
                if (WEIGHT_TYPE == F32) value = ((device const float *)row)[k];
                else if (WEIGHT_TYPE == F16) value = float(((device const half *)row)[k]);
                else value = as_type<float>(uint(((device const ushort *)row)[k]) << 16);
            }
            w.v[i][j] = value;
        }
    }
    return w;
}
