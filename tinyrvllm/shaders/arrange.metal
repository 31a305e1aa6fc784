// arrange: copies a weight matrix, rows of Q8_0 with their scales behind the weights.
//
//    as a file has it   d q0 ... q31 | d q32 ... q63 | ...      34 bytes a block
//    apart              q0 ... q31 q32 ... q63 ... | d d ...    as many bytes a row
//
// 1. Done once, when a model is loaded, and only for a GPU that gains by it (runner/tensors.py):
//    weights then begin at multiples of 16 and a lane's 16 are one load.
// 2. Two bytes a thread at a time, since a block begins at a multiple of 2. Other types are
//    copied as they are.
#include "common.h"

constant bool APART [[function_constant(0)]];

[[max_total_threads_per_threadgroup(256)]]
kernel void arrange(device const ushort *from [[buffer(0)]], device ushort *to [[buffer(1)]],
                    constant uint &row_halves [[buffer(2)]],   // 2-byte words of a row
                    uint row [[threadgroup_position_in_grid]],
                    uint thread_index [[thread_index_in_threadgroup]]) {
    device const ushort *in = from + ulong(row) * row_halves;
    device ushort *out = to + ulong(row) * row_halves;
    uint scales = row_halves / 17 * 16;                        // where they begin: a block has 17
    for (uint i = thread_index; i < row_halves; i += 256) {
        uint block = i / 17, place = i % 17;
        uint at = place == 0 ? scales + block : block * 16 + place - 1;
        out[APART ? at : i] = in[i];
    }
}
