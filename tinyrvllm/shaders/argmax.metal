// argmax of each row, without moving the row: 8 bytes leave the GPU instead of 4 per column.
//
// Version ladder
//   1  one threadgroup a row: 262,144 columns pass through one core of the GPU
//   2  this file: argmax_chunks spreads a row over many threadgroups of 4,096 columns each,
//      argmax_rows picks among the chunks' winners
//
// 1. Comparing (value, index) pairs, larger value first and then the lower index, is associative
//    and commutative: any order of reduction gives the same answer, ties included.
// 2. NaN never wins: it compares false with everything. That needs safe maths (fast maths may
//    assume there is no NaN), which every library is compiled with.
// 3. flags tell what an index cannot: 1 some value was NaN, 2 no value was above -inf (the index
//    is then that of the first -inf, or 0 if there is none).
#include "common.h"

constant constexpr uint CHUNK = 4096;   // columns of a threadgroup: 16 a thread, 16 KB of reading
constant constexpr uint HAS_NAN = 1, ALL_MASKED = 2, NOWHERE = 0xFFFFFFFFu;

struct Best {
    float value;
    uint index, has_nan;
};

inline Best better(Best a, Best b) {
    bool b_wins = b.value > a.value || (b.value == a.value && b.index < a.index);
    Best r;
    r.value = b_wins ? b.value : a.value;
    r.index = b_wins ? b.index : a.index;
    r.has_nan = a.has_nan | b.has_nan;
    return r;
}

inline Best best_of_simdgroup(Best best) {
    for (ushort step = 1; step < 32; step *= 2) {
        Best other;
        other.value = simd_shuffle_xor(best.value, step);
        other.index = simd_shuffle_xor(best.index, step);
        other.has_nan = simd_shuffle_xor(best.has_nan, step);
        best = better(best, other);
    }
    return best;
}

inline Best one(float value, uint index) {
    Best r;
    r.value = isnan(value) ? -INFINITY : value;
    r.index = isnan(value) ? NOWHERE : index;
    r.has_nan = isnan(value) ? 1 : 0;
    return r;
}

[[max_total_threads_per_threadgroup(256)]]
kernel void argmax_chunks(device const float *x [[buffer(0)]],   // [rows, columns]
                          device Best *winners [[buffer(1)]],    // [rows, chunks]
                          constant uint &columns [[buffer(2)]],
                          uint2 group [[threadgroup_position_in_grid]],   // chunk, row
                          uint2 groups [[threadgroups_per_grid]],
                          uint thread_index [[thread_index_in_threadgroup]],
                          uint lane [[thread_index_in_simdgroup]],
                          uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup Best of_simdgroup[8];
    device const float *in = x + ulong(group.y) * columns;
    Best best = one(-INFINITY, NOWHERE);
    uint end = min(columns, (group.x + 1) * CHUNK);
    for (uint i = group.x * CHUNK + thread_index; i < end; i += 256) {
        best = better(best, one(in[i], i));
    }
    best = best_of_simdgroup(best);
    if (lane == 0) of_simdgroup[simdgroup] = best;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index > 0) return;
    for (ushort i = 1; i < 8; i++) best = better(best, of_simdgroup[i]);
    winners[group.y * groups.x + group.x] = best;
}

[[max_total_threads_per_threadgroup(32)]]
kernel void argmax_rows(device const Best *winners [[buffer(0)]],   // [rows, chunks]
                        device int *indices [[buffer(1)]],          // [rows]
                        device uint *flags [[buffer(2)]],           // [rows]
                        constant uint &chunks [[buffer(3)]],
                        uint row [[threadgroup_position_in_grid]],
                        uint lane [[thread_index_in_simdgroup]]) {
    Best best = one(-INFINITY, NOWHERE);
    for (uint i = lane; i < chunks; i += 32) best = better(best, winners[row * chunks + i]);
    best = best_of_simdgroup(best);
    if (lane > 0) return;
    indices[row] = best.index == NOWHERE ? 0 : int(best.index);
    flags[row] = (best.has_nan ? HAS_NAN : 0) | (best.value == -INFINITY ? ALL_MASKED : 0);
}
