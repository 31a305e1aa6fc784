// top_k: the k largest values of each row and their indices, largest first, for sampling: k pairs
// leave the GPU instead of a row of the vocabulary.
//
// Version ladder
//   1  argmax k times, each time over the whole row: k passes
//   2  this file: the k-th largest value is found digit by digit (radix select, 4 passes of 8
//      bits over the row), then everything above it is collected and sorted by counting
//
// 1. A float's bits, with the sign bit flipped for positives and all bits for negatives, order as
//    unsigned integers like the floats do. NaN becomes the smallest key: it is never chosen while
//    there are k others. -0 is made +0, so that the two tie.
// 2. Ties at the k-th value are taken in index order: each simdgroup owns a contiguous stretch of
//    the row, counts its ties, and prefix sums give every tie its rank. Nothing depends on the
//    order in which atomic additions happen: histogram counts are the same in any order.
// 3. The k winners are ranked by comparing each with every other: k is at most 256, one a thread.
#include "common.h"

constant constexpr uint THREADS = 256, MAX_K = 256, SIMDGROUPS = THREADS / 32;

struct TopKArgs {   // mirrored by kernels/top_k.py
    uint columns, k;
};

inline uint sort_key(float value) {
    if (isnan(value)) return 0;
    uint bits = as_type<uint>(value == 0.0f ? 0.0f : value);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

[[max_total_threads_per_threadgroup(256)]]
kernel void top_k(device const float *x [[buffer(0)]],       // [rows, columns]
                  device float *values [[buffer(1)]],        // [rows, k]
                  device int *indices [[buffer(2)]],         // [rows, k]
                  constant TopKArgs &a [[buffer(3)]],
                  uint row [[threadgroup_position_in_grid]],
                  uint thread_index [[thread_index_in_threadgroup]],
                  uint lane [[thread_index_in_simdgroup]],
                  uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup atomic_uint histogram[256];
    threadgroup uint chosen, wanted;                         // digit, and how many within it
    threadgroup uint above[SIMDGROUPS], ties[SIMDGROUPS];
    threadgroup uint keys[MAX_K], places[MAX_K];
    device const float *in = x + ulong(row) * a.columns;

    uint prefix = 0, k = a.k;                                // the digits found so far
    for (int shift = 24; shift >= 0; shift -= 8) {
        atomic_store_explicit(&histogram[thread_index], 0u, memory_order_relaxed);
        threadgroup_barrier(mem_flags::mem_threadgroup);     // the histogram is empty
        for (uint i = thread_index; i < a.columns; i += THREADS) {
            uint key = sort_key(in[i]);
            if (shift == 24 || key >> (shift + 8) == prefix) {
                atomic_fetch_add_explicit(&histogram[key >> shift & 255], 1u, memory_order_relaxed);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);     // all are counted
        if (thread_index == 0) {
            uint digit = 255, left = k;
            for (; digit > 0; digit--) {
                uint count = atomic_load_explicit(&histogram[digit], memory_order_relaxed);
                if (count >= left) break;
                left -= count;
            }
            chosen = digit;
            wanted = left;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);     // the digit is known
        prefix = prefix << 8 | chosen;
        k = wanted;
    }

    // `prefix` is the k-th largest key; `k` of its ties are wanted, those with the lowest indices.
    uint stretch = (a.columns + SIMDGROUPS - 1) / SIMDGROUPS;
    uint from = simdgroup * stretch, to = min(from + stretch, a.columns);
    uint my_above = 0, my_ties = 0;
    for (uint i = from + lane; i < to; i += 32) {
        uint key = sort_key(in[i]);
        my_above += key > prefix ? 1 : 0;
        my_ties += key == prefix ? 1 : 0;
    }
    my_above = simd_sum(my_above);
    my_ties = simd_sum(my_ties);
    if (lane == 0) {
        above[simdgroup] = my_above;
        ties[simdgroup] = my_ties;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);         // every simdgroup's counts are there
    uint next_above = 0, next_tie = 0;
    for (uint s = 0; s < simdgroup; s++) {
        next_above += above[s];
        next_tie += ties[s];
    }
    for (uint i = from; i < to; i += 32) {
        bool inside = i + lane < to;
        uint key = inside ? sort_key(in[i + lane]) : 0;
        uint is_above = inside && key > prefix ? 1 : 0, is_tie = inside && key == prefix ? 1 : 0;
        uint place = next_above + simd_prefix_exclusive_sum(is_above);
        uint tie = next_tie + simd_prefix_exclusive_sum(is_tie);
        if (is_tie && tie < k) place = a.k - k + tie;        // after all that are above
        if (is_above || (is_tie && tie < k)) {
            keys[place] = key;
            places[place] = i + lane;
        }
        next_above += simd_sum(is_above);
        next_tie += simd_sum(is_tie);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);         // the winners are collected
    if (thread_index >= a.k) return;
    uint key = keys[thread_index], place = places[thread_index], rank = 0;
    for (uint i = 0; i < a.k; i++) {
        if (keys[i] > key || (keys[i] == key && places[i] < place)) rank++;
    }
    values[ulong(row) * a.k + rank] = in[place];
    indices[ulong(row) * a.k + rank] = int(place);
}
