// Exercise 07, embed: rows of a quantised matrix, as floats.
//
// Complete the two functions; the kernel around them is whole. Keep the names of the variables.
// Check:  python -m lessons.check 07
#include <metal_stdlib>
using namespace metal;

constant uint WEIGHT_TYPE [[function_constant(0)]];   // GGUF's numbers: 0 F32, 3 Q4_1, 8 Q8_0

// Weight number k of a row in Q8_0: blocks of 32 weights in 34 bytes.
//
//     byte 0: half d     bytes 2 to 33: 32 signed bytes q        weight = d * q
inline float q8_0(device const uchar *row, uint k) {
    device const uchar *block = row;
    float d = 1.0f;
    float q = float(block[k]);
    return d * q;
}

// Weight number k of a row in Q4_1: blocks of 32 weights in 20 bytes.
//
//     byte 0: half d     byte 2: half m     bytes 4 to 19: nibbles q     weight = d * q + m
//
// Weights 0 to 15 of a block are the low nibbles of these 16 bytes, 16 to 31 the high ones.
inline float q4_1(device const uchar *row, uint k) {
    device const uchar *block = row;
    float d = 1.0f;
    float m = 0.0f;
    float q = float(block[k]);
    return d * q + m;
}

struct EmbedArgs {
    uint rows, columns, row_bytes;
    float scale;
    uint writes_squares;
};

[[max_total_threads_per_threadgroup(64)]]
kernel void embed(device const int *ids [[buffer(0)]],         // [rows]; -1 is padding
                  device const uchar *weight [[buffer(1)]],    // [vocabulary, columns]
                  device float *y [[buffer(2)]],               // [rows, columns]
                  device float *squares_out [[buffer(3)]],     // [rows, columns / 512]
                  constant EmbedArgs &a [[buffer(4)]],
                  uint2 group [[threadgroup_position_in_grid]],
                  uint thread_index [[thread_index_in_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]]) {
    uint first = (group.x * 64 + thread_index) * 16, row = group.y;   // 16 weights a thread
    int id = ids[row];
    device const uchar *from = weight + ulong(max(id, 0)) * a.row_bytes;
    float squares = 0.0f;
    for (uint k = first; k < min(first + 16, a.columns); k++) {
        float value = 0.0f;
        if (id >= 0) {
            if (WEIGHT_TYPE == 8) value = q8_0(from, k);
            else if (WEIGHT_TYPE == 3) value = q4_1(from, k);
            else value = ((device const float *)from)[k];
        }
        value *= a.scale;
        y[ulong(row) * a.columns + k] = value;
        float small = value / 4294967296.0f;   // 2^-32: what a norm is given, see common.h
        squares += small * small;
    }
    if (!a.writes_squares) return;
    squares = simd_sum(squares);
    uint parts = (a.columns + 511) / 512, part = group.x * 2 + thread_index / 32;
    if (lane == 0 && part < parts) squares_out[row * parts + part] = squares;
}
