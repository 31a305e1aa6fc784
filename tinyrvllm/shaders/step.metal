// advance: greedy decoding that stays on the GPU. Each sequence's likeliest token becomes its
// next input, so that the next step can be committed before this one is waited for.
//
// Version ladder
//   1  the host reads an index, writes the next step: the GPU idles for a round trip a token
//   2  argmax_rows, then a copy into the step buffer: nothing waits, one phase more
//   3  this file: the last part of argmax and the next step's numbers in one dispatch
//
// 1. A step in which every sequence has one row: row and sequence are the same number.
// 2. A padded row (token -1) stays as it is.
// 3. Past the block table's end there is no slot: -1, which writes nothing. Only the last step
//    that the context has room for gets there.
#include "argmax.h"

struct AdvanceArgs {   // mirrored by kernels/step.py
    uint chunks, block_size, table_stride;
};

[[max_total_threads_per_threadgroup(32)]]
kernel void advance(device const Best *winners [[buffer(0)]],       // [rows, chunks]
                    device int *token_ids [[buffer(1)]],            // [rows]; -1: padding
                    device int *positions [[buffer(2)]],            // [rows]
                    device int *context_lens [[buffer(3)]],         // [rows]
                    device int *slots [[buffer(4)]],                // [rows]
                    device const int *block_tables [[buffer(5)]],   // [rows, table_stride]
                    device int2 *results [[buffer(6)]],             // [rows] index, flags
                    constant AdvanceArgs &a [[buffer(7)]],
                    uint row [[threadgroup_position_in_grid]],
                    uint lane [[thread_index_in_simdgroup]]) {
    Best best = best_of_chunks(winners + row * a.chunks, a.chunks, lane);
    if (lane > 0 || token_ids[row] < 0) return;
    results[row] = int2(index_of(best), int(flags_of(best)));
    uint position = uint(positions[row]) + 1, block = position / a.block_size;
    token_ids[row] = index_of(best);
    positions[row] = int(position);
    context_lens[row] = int(position) + 1;
    int slot = -1;
    if (block < a.table_stride) {
        int first = block_tables[row * a.table_stride + block] * int(a.block_size);
        slot = first + int(position % a.block_size);
    }
    slots[row] = slot;
}
