// Exercise 08, staged: also right. Padded rows, two buffers that take turns (one barrier a round),
// and the output staged over the first of them.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

struct TileArgs { uint rows, outputs, inputs; };

constant constexpr uint PITCH = 20;   // 16 and 4 more: rows start in different banks

// Number e of a tile: 0 past the edges of the matrix [rows, columns].
inline float element(device const float *m, uint row, uint column, uint rows, uint columns) {
    return row < rows && column < columns ? m[row * columns + column] : 0.0f;
}

kernel void staged(device const float *x [[buffer(0)]], device const float *w [[buffer(1)]],
                   device float *y [[buffer(2)]], constant TileArgs &a [[buffer(3)]],
                   uint2 group [[threadgroup_position_in_grid]],
                   uint t [[thread_index_in_threadgroup]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup float tiles[2][2][16 * PITCH];
    uint2 quadrant = uint2(simdgroup % 2, simdgroup / 2) * 8;
    simdgroup_float8x8 sums(0.0f), xs, ws;
    uint turn = 0;
    for (uint k = 0; k < a.inputs; k += 16) {
        for (uint e = t; e < 256; e += 128) {
            uint r = e / 16, c = e % 16;
            tiles[turn][0][r * PITCH + c] = element(x, group.y * 16 + r, k + c, a.rows, a.inputs);
            tiles[turn][1][r * PITCH + c] = element(w, group.x * 16 + r, k + c, a.outputs, a.inputs);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint kk = 0; kk < 16; kk += 8) {
            simdgroup_load(xs, tiles[turn][0] + quadrant.y * PITCH + kk, PITCH);
            simdgroup_load(ws, tiles[turn][1] + quadrant.x * PITCH + kk, PITCH, ulong2(0, 0), true);
            simdgroup_multiply_accumulate(sums, xs, ws, sums);
        }
        turn ^= 1;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_store(sums, tiles[0][0] + quadrant.y * PITCH + quadrant.x, PITCH);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = t; e < 256; e += 128) {
        uint row = group.y * 16 + e / 16, n = group.x * 16 + e % 16;
        if (row < a.rows && n < a.outputs) {
            y[row * a.outputs + n] = tiles[0][0][e / 16 * PITCH + e % 16];
        }
    }
}
