// rmsnorm and softmax: one threadgroup a row.
//
// Version ladder (barriers a row)
//   1  halving tree in threadgroup memory: log2(threads) barriers, half the threads idle each time
//   2  simd_sum, a partial per simdgroup, a second simd_sum by the first simdgroup: 2 barriers
//   3  this file: every thread adds the 4 partials itself, in order: 1 barrier for a norm, 2 for
//      a softmax
//
// 1. 128 threads: 576 to 2,560 columns are 5 to 20 a thread. More threads would wait at the
//    barrier longer than they would read less.
// 2. The order of summation is fixed by (columns, 128): the same row gives the same bits in any
//    batch.
// 3. Squares are summed in float, of x * 2^-32: 1e20 squared would not fit.
// 4. -inf is a mask: exp(-inf - max) = 0. A row of nothing but -inf gives zeros, not NaN.
#include "common.h"

constant constexpr ushort TURN = 8;   // elements whose loads overlap
#define EACH_OF_TURN(j) UNROLL for (ushort j = 0; j < TURN; j++)

struct NormArgs {   // mirrored by kernels/reduce.py
    uint columns, x_stride, y_stride, residual_stride;
    float epsilon;
    uint has_residual;   // y = residual + norm(x) * weight: the norm after a block, as in Gemma
};

[[max_total_threads_per_threadgroup(128)]]
kernel void rmsnorm(device const float *x [[buffer(0)]],          // [rows, columns]
                    device const float *weight [[buffer(1)]],     // [columns]
                    device const float *residual [[buffer(2)]],   // [rows, columns]
                    device float *y [[buffer(3)]],                // [rows, columns]; may be x
                    constant NormArgs &a [[buffer(4)]],
                    uint row [[threadgroup_position_in_grid]],
                    uint thread_index [[thread_index_in_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup float scratch[4];
    device const float *in = x + ulong(row) * a.x_stride;
    float squares = 0.0f;
    for (uint base = thread_index; base < a.columns; base += 128 * TURN) {
        float value[TURN];                                    // all are loaded before one is used
        EACH_OF_TURN(j) value[j] = base + j * 128 < a.columns ? in[base + j * 128] : 0.0f;
        EACH_OF_TURN(j) {
            float small = value[j] * SHRINK;
            squares = fma(small, small, squares);
        }
    }
    float mean = threadgroup_sum(squares, scratch, lane, simdgroup, 4) / float(a.columns);
    float scale = norm_scale(mean, a.epsilon);
    for (uint base = thread_index; base < a.columns; base += 128 * TURN) {
        float value[TURN];
        EACH_OF_TURN(j) {
            uint i = base + j * 128;
            value[j] = i < a.columns ? in[i] * scale * weight[i] : 0.0f;
            if (a.has_residual && i < a.columns) {
                value[j] += residual[ulong(row) * a.residual_stride + i];
            }
        }
        EACH_OF_TURN(j) {
            uint i = base + j * 128;
            if (i < a.columns) y[ulong(row) * a.y_stride + i] = value[j];
        }
    }
}

[[max_total_threads_per_threadgroup(128)]]
kernel void softmax(device const float *x [[buffer(0)]],   // [rows, columns]
                    device float *y [[buffer(1)]],         // [rows, columns]; may be x
                    constant uint &columns [[buffer(2)]],
                    uint row [[threadgroup_position_in_grid]],
                    uint thread_index [[thread_index_in_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup float maxima[4], sums[4];
    device const float *in = x + ulong(row) * columns;
    device float *out = y + ulong(row) * columns;
    float best = -INFINITY;
    for (uint i = thread_index; i < columns; i += 128) best = max(best, in[i]);
    best = threadgroup_max(best, maxima, lane, simdgroup, 4);
    float sum = 0.0f;
    for (uint i = thread_index; i < columns; i += 128) {
        sum += best == -INFINITY ? 0.0f : exp(in[i] - best);
    }
    sum = threadgroup_sum(sum, sums, lane, simdgroup, 4);
    for (uint i = thread_index; i < columns; i += 128) {
        out[i] = best == -INFINITY ? 0.0f : exp(in[i] - best) / sum;
    }
}
