// argmax of each row, without moving the row: 8 bytes leave the GPU instead of 4 per column.
//
// Version ladder
//   1  one threadgroup a row: 262,144 columns pass through one core of the GPU
//   2  this file: argmax_chunks spreads a row over many threadgroups of 4,096 columns each,
//      argmax_rows picks among the chunks' winners
//
// Order, NaN and flags: argmax.h.
#include "argmax.h"

constant constexpr uint CHUNK = 4096;   // columns of a threadgroup: 16 a thread, 16 KB of reading

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
    Best best = best_of_chunks(winners + row * chunks, chunks, lane);
    if (lane > 0) return;
    indices[row] = index_of(best);
    flags[row] = flags_of(best);
}
