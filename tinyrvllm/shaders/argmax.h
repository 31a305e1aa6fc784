// The largest value of a row, found in any order: what argmax.metal and step.metal share.
//
// 1. Comparing (value, index) pairs, larger value first and then the lower index, is associative
//    and commutative: any order of reduction gives the same answer, ties included.
// 2. NaN never wins: it compares false with everything. That needs safe maths (fast maths may
//    assume there is no NaN), which every library is compiled with.
// 3. flags tell what an index cannot: 1 some value was NaN, 2 no value was above -inf (the index
//    is then that of the first -inf, or 0 if there is none).
#pragma once
#include "common.h"

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

// Three reductions instead of five rounds of shuffles: the largest value, then the lowest index
// that has it.
inline Best best_of_simdgroup(Best best) {
    Best r;
    r.value = simd_max(best.value);
    r.index = simd_min(best.value == r.value ? best.index : NOWHERE);
    r.has_nan = simd_or(best.has_nan);
    return r;
}

inline Best one(float value, uint index) {
    Best r;
    r.value = isnan(value) ? -INFINITY : value;
    r.index = isnan(value) ? NOWHERE : index;
    r.has_nan = isnan(value) ? 1 : 0;
    return r;
}

// The best of a row's chunks, by one simdgroup.
inline Best best_of_chunks(device const Best *winners, uint chunks, uint lane) {
    Best best = one(-INFINITY, NOWHERE);
    for (uint i = lane; i < chunks; i += 32) best = better(best, winners[i]);
    return best_of_simdgroup(best);
}

inline int index_of(Best best) { return best.index == NOWHERE ? 0 : int(best.index); }

inline uint flags_of(Best best) {
    return (best.has_nan ? HAS_NAN : 0) | (best.value == -INFINITY ? ALL_MASKED : 0);
}
