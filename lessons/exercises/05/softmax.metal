// Exercise 05, softmax: one threadgroup of 128 threads has one row. -inf is a mask.
//
//     y[i] = exp(x[i] - max(x)) / sum(exp(x - max(x)))      0 where x[i] is -inf
//
// Complete steps 1 to 5 and keep the names of the variables.
// Check:  python -m lessons.check 05 softmax
#include <metal_stdlib>
using namespace metal;

[[max_total_threads_per_threadgroup(128)]]
kernel void softmax(device const float *x [[buffer(0)]],   // [rows, columns]
                    device float *y [[buffer(1)]],         // [rows, columns]
                    constant uint &columns [[buffer(2)]],
                    uint row [[threadgroup_position_in_grid]],
                    uint thread_index [[thread_index_in_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup float maxima[4], sums[4];   // one for each simdgroup
    device const float *in = x + ulong(row) * columns;
    device float *out = y + ulong(row) * columns;

    // 1. The largest of this thread's values: number thread_index, thread_index + 128, ...
    float best = in[0];

    // 2. The largest of the row: one maximum a simdgroup, a barrier, the largest of the four.
    float row_best = best;

    // 3. The sum of exp(x - row_best) over this thread's values. A row that is masked as a whole
    //    has no largest value: its sum is 0.
    float sum = 0.0f;

    // 4. The sum over the row, in the same way as the maximum.
    float row_sum = sum;

    // 5. Write this thread's values; zeros for a row that is masked as a whole.
    for (uint i = thread_index; i < columns; i += 128) {
        float value = in[i];
        out[i] = value;
    }
}
