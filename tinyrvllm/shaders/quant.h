// One dequantiser per weight type, shared by embedding, matvec, ksplit and gemm.
//
// The unit is 16 consecutive weights of one row: `load_weights(row, unit, columns)`. Every GGUF
// block holds a whole number of units (32 weights: 2, 256 weights: 16), and 16 contiguous weights
// never cross a scale group of any type, so a unit has one scale.
//
// 1. Weights stay as the file has them; WEIGHT_TYPE is a function constant, so a pipeline
//    contains one branch of the switch below and nothing of the others.
// 2. Blocks of 18, 22, 34 or 210 bytes lie at multiples of 2, and no load counts on more: all are
//    packed vectors, one instruction each on Apple's GPU, which takes any alignment of the element.
// 3. The two units of a 4-bit block sit in the low and the high nibbles of the same 16 bytes.
//    Two neighbouring lanes load the same bytes: one access to the cache, and no shuffling.
// 4. Four nibbles are masked out of one 32-bit word at a time, then widened by float4(uchar4).
//
// 5. 34 bytes suit no load of 16. GPUs of many cores therefore get Q8_0 rearranged (arrange.metal),
//    a row's weights first, then its scales: Q8_0_APART.
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
    Q4_K = 12, Q5_K = 13, Q6_K = 14, BF16 = 30,
    Q8_0_APART = 264   // not GGUF's
};
constant uint WEIGHT_TYPE [[function_constant(0)]];
// Rows of plain weights and of x start at multiples of 16 bytes, so that a load may take 16 at
// once, and consist of whole units.
constant bool WIDE [[function_constant(5)]];
constant bool IS_WIDE = is_function_constant_defined(WIDE) ? WIDE : false;
// Unquantised weights need no scale or shift, and only their rows can end inside a unit.
constant bool PLAIN = WEIGHT_TYPE == F32 || WEIGHT_TYPE == F16 || WEIGHT_TYPE == BF16;
constant bool SIGNED = WEIGHT_TYPE == Q8_0 || WEIGHT_TYPE == Q8_0_APART;
constant bool SHIFTED = !PLAIN && !SIGNED;

// 16 consecutive weights of a row are scale * v + shift. Apart, because a product with x can then
// be scaled once per unit (matvec) instead of once per weight. Both fold to nothing for types that
// have neither.
struct Weights {
    float4 v[4];
    float scale, shift;
};

// The same as it comes from memory: a byte for each quantised weight in words[0], two for each half
// in words[0] and [1], four for each float. A kernel that loads ahead keeps these and widens later.
struct Packed {
    uint4 words[4];
    float scale, shift;
};

inline float load_half(device const uchar *p) { return float(*(device const half *)p); }

inline uint4 load_16_bytes(device const uchar *p) {
    device const packed_ushort4 *q = (device const packed_ushort4 *)p;
    return uint4(as_type<uint2>(ushort4(q[0])), as_type<uint2>(ushort4(q[1])));
}

// The four words of a unit's 16 nibbles, one in each byte: low ones for shift 0, high for 4.
inline uint4 load_nibbles(device const uchar *p, uint shift) {
    return (load_16_bytes(p) >> shift) & 0x0F0F0F0Fu;
}

// Bits 0..3 of `bits` become bit 4 of bytes 0..3: the fifth bits of four 5-bit weights. The
// multiplication copies the four bits to distances of 7, so that bit i lands on bit 8 i.
inline uint fifth_bits(uint bits) { return (((bits & 0xFu) * 0x00204081u) & 0x01010101u) << 4; }

inline uint4 fifth_bits_of_16(uint bits) {
    return uint4(fifth_bits(bits), fifth_bits(bits >> 4), fifth_bits(bits >> 8),
                 fifth_bits(bits >> 12));
}

inline Packed bytes_of(uint4 words, float scale, float shift) {
    Packed p;
    p.words[0] = words;
    p.scale = scale;
    p.shift = shift;
    return p;
}

inline Packed load_q8_0(device const uchar *row, uint unit) {
    device const uchar *block = row + unit / 2 * 34;                 // half d; char q[32]
    return bytes_of(load_16_bytes(block + 2 + unit % 2 * 16), load_half(block), 0.0f);
}

// char q[columns]; half d[columns / 32]: rows of whole steps of 512 weights, at multiples of 16.
inline Packed load_q8_0_apart(device const uchar *row, uint unit, uint columns) {
    uint4 words = ((device const uint4 *)row)[unit];
    return bytes_of(words, load_half(row + columns + unit / 2 * 2), 0.0f);
}

inline Packed load_q4_0(device const uchar *row, uint unit) {
    device const uchar *block = row + unit / 2 * 18;                 // half d; nibbles[16]
    float d = load_half(block);
    return bytes_of(load_nibbles(block + 2, unit % 2 * 4), d, -8.0f * d);
}

inline Packed load_q4_1(device const uchar *row, uint unit) {
    device const uchar *block = row + unit / 2 * 20;                 // half d, m; nibbles[16]
    return bytes_of(load_nibbles(block + 4, unit % 2 * 4), load_half(block),
                      load_half(block + 2));
}

inline Packed load_q5_0(device const uchar *row, uint unit) {
    device const uchar *block = row + unit / 2 * 22;        // half d; bits[4]; nibbles[16]
    float d = load_half(block);
    uint bits = *(device const ushort *)(block + 2 + unit % 2 * 2);
    uint4 words = load_nibbles(block + 6, unit % 2 * 4) | fifth_bits_of_16(bits);
    return bytes_of(words, d, -16.0f * d);
}

inline Packed load_q5_1(device const uchar *row, uint unit) {
    device const uchar *block = row + unit / 2 * 24;        // half d, m; bits[4]; nibbles[16]
    uint bits = *(device const ushort *)(block + 4 + unit % 2 * 2);
    uint4 words = load_nibbles(block + 8, unit % 2 * 4) | fifth_bits_of_16(bits);
    return bytes_of(words, load_half(block), load_half(block + 2));
}

// Scale and minimum of 32-weight group j of a K-quant super-block: 6 bits each, packed in 12
// bytes. Groups 0..3 have theirs in the low 6 bits; 4..7 take 4 low bits from bytes 8..11 and
// 2 high bits from the top of bytes 0..7.
inline float2 k_scale_min(device const uchar *s, uint j) {
    if (j < 4) return float2(s[j] & 63, s[j + 4] & 63);
    return float2((s[j + 4] & 15) | (s[j - 4] >> 6 << 4), (s[j + 4] >> 4) | (s[j] >> 6 << 4));
}

inline Packed load_q4_k(device const uchar *row, uint unit) {
    device const uchar *block = row + unit / 16 * 144;   // half d, dmin; scales[12]; nibbles[128]
    uint j = unit % 16 / 2;
    float2 scale_min = k_scale_min(block + 4, j);
    uint4 words = load_nibbles(block + 16 + j / 2 * 32 + unit % 2 * 16, j % 2 * 4);
    return bytes_of(words, load_half(block) * scale_min.x, -load_half(block + 2) * scale_min.y);
}

inline Packed load_q5_k(device const uchar *row, uint unit) {
    device const uchar *block = row + unit / 16 * 176;   // ...; scales[12]; bits[32]; nibbles[128]
    uint j = unit % 16 / 2;
    float2 scale_min = k_scale_min(block + 4, j);
    uint4 bits = (load_16_bytes(block + 16 + unit % 2 * 16) >> j) & 0x01010101u;
    uint4 words = load_nibbles(block + 48 + j / 2 * 32 + unit % 2 * 16, j % 2 * 4) | bits << 4;
    return bytes_of(words, load_half(block) * scale_min.x, -load_half(block + 2) * scale_min.y);
}

inline Packed load_q6_k(device const uchar *row, uint unit) {
    // nibbles[128]; two bits[64]; char scales[16]; half d. A half of 128 weights is 8 units: units
    // 0..3 are low nibbles and 4..7 high ones of the same 64 bytes; quarter q (two units) has its
    // upper bits at bits 2q and 2q + 1 of 32 bytes.
    device const uchar *block = row + unit / 16 * 210;
    uint part = unit % 16 / 8, quarter = unit % 8 / 2;
    uint4 bits = load_16_bytes(block + 128 + part * 32 + unit % 2 * 16) >> (2 * quarter);
    uint4 words = load_nibbles(block + part * 64 + unit % 4 * 16, quarter / 2 * 4);
    words |= (bits & 0x03030303u) << 4;
    float scale = load_half(block + 208) * float(*(device const char *)(block + 192 + unit % 16));
    return bytes_of(words, scale, -32.0f * scale);
}

inline Packed load_f32(device const uchar *row, uint unit) {
    device const packed_float4 *p = (device const packed_float4 *)(row + unit * 64);
    Packed w;
    for (ushort i = 0; i < 4; i++) {
        w.words[i] = as_type<uint4>(IS_WIDE ? ((device const float4 *)p)[i] : float4(p[i]));
    }
    return w;
}

// half and bfloat16 alike: 16 times 2 bytes.
inline Packed load_halves(device const uchar *row, uint unit) {
    device const uchar *p = row + unit * 32;
    Packed w;
    w.words[0] = IS_WIDE ? ((device const uint4 *)p)[0] : load_16_bytes(p);
    w.words[1] = IS_WIDE ? ((device const uint4 *)p)[1] : load_16_bytes(p + 16);
    return w;
}

// 16 weights of a row of `columns`, from weight 16 * unit on; all of them must exist.
inline Packed fetch(device const uchar *row, uint unit, uint columns) {
    switch (WEIGHT_TYPE) {
        case F32: return load_f32(row, unit);
        case Q4_0: return load_q4_0(row, unit);
        case Q4_1: return load_q4_1(row, unit);
        case Q5_0: return load_q5_0(row, unit);
        case Q5_1: return load_q5_1(row, unit);
        case Q8_0: return load_q8_0(row, unit);
        case Q8_0_APART: return load_q8_0_apart(row, unit, columns);
        case Q4_K: return load_q4_k(row, unit);
        case Q5_K: return load_q5_k(row, unit);
        case Q6_K: return load_q6_k(row, unit);
        default: return load_halves(row, unit);
    }
}

// Words i and i + 1 of 2-byte floats. bfloat16 is the upper half of a float32, so it needs no
// bfloat support (Metal 3.1).
inline float4 widen_halves(uint2 words) {
    if (WEIGHT_TYPE == F16) return float4(as_type<half4>(words));
    return as_type<float4>(uint4(as_type<ushort4>(words)) << 16);
}

inline float4 widen_bytes(uint word) {
    if (SIGNED) return float4(as_type<char4>(word));
    return float4(as_type<uchar4>(word));
}

inline Weights widened(thread const Packed &p) {
    Weights w;
    w.scale = p.scale;
    w.shift = p.shift;
    if (WEIGHT_TYPE == F32) {
        for (ushort i = 0; i < 4; i++) w.v[i] = as_type<float4>(p.words[i]);
    } else if (PLAIN) {
        w.v[0] = widen_halves(p.words[0].xy);
        w.v[1] = widen_halves(p.words[0].zw);
        w.v[2] = widen_halves(p.words[1].xy);
        w.v[3] = widen_halves(p.words[1].zw);
    } else {
        for (ushort i = 0; i < 4; i++) w.v[i] = widen_bytes(p.words[0][i]);
    }
    return w;
}

// The last unit of a row whose length is no multiple of 16. Weights from `columns` on count as 0.
inline Weights load_part_unit(device const uchar *row, uint unit, uint columns) {
    Weights w;
    for (ushort i = 0; i < 16; i++) {
        uint k = unit * 16 + i;
        float value = 0.0f;
        if (k < columns) {
            if (WEIGHT_TYPE == F32) value = *((device const float *)row + k);
            else if (WEIGHT_TYPE == F16) value = float(*((device const half *)row + k));
            else value = as_type<float>(uint(*((device const ushort *)row + k)) << 16);
        }
        w.v[i / 4][i % 4] = value;
    }
    return w;
}

inline Weights load_weights(device const uchar *row, uint unit, uint columns) {
    if (PLAIN && !IS_WIDE && unit * 16 + 16 > columns) return load_part_unit(row, unit, columns);
    return widened(fetch(row, unit, columns));
}

// The i-th four weights of a unit.
inline float4 dequantised(thread const Weights &w, ushort i) {
    if (PLAIN) return w.v[i];
    if (!SHIFTED) return w.v[i] * w.scale;
    return fma(w.v[i], float4(w.scale), float4(w.shift));
}
