// Exercise 05, rmsnorm: one threadgroup of 128 threads normalises one row.
//
//     y[i] = x[i] / sqrt(mean(x * x) + epsilon) * weight[i]
//
// Complete steps 1 to 5 and keep the names of the variables: by them the checker can say where a
// value first goes wrong. Check:  python -m lessons.check 05
#include <metal_stdlib>
using namespace metal;

struct NormArgs {
    uint columns, x_stride, y_stride, residual_stride;   // strides in floats
    float epsilon;
    uint has_residual;   // given: Gemma adds what went around the norm
};

[[max_total_threads_per_threadgroup(128)]]
kernel void rmsnorm(device const float *x [[buffer(0)]],          // [rows, columns]
                    device const float *weight [[buffer(1)]],     // [columns]
                    device const float *residual [[buffer(2)]],   // [rows, columns]
                    device float *y [[buffer(3)]],                // [rows, columns]
                    constant NormArgs &a [[buffer(4)]],
                    uint row [[threadgroup_position_in_grid]],
                    uint thread_index [[thread_index_in_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup float scratch[4];   // one partial sum for each simdgroup
    device const float *in = x + ulong(row) * a.x_stride;

    // 1. The sum of squares of this thread's values: number thread_index, thread_index + 128, ...
    float squares = 0.0f;

    // 2. The sum over this thread's simdgroup. Its first lane leaves it in scratch[simdgroup].
    float partial = squares;

    // 3. When all four are there, every thread adds them up.
    float total = partial;

    // 4. The mean of the squares, then what each value is multiplied by.
    float mean = total;
    float scale = mean;

    // 5. Write this thread's values.
    for (uint i = thread_index; i < a.columns; i += 128) {
        float value = in[i];
        if (a.has_residual) value += residual[ulong(row) * a.residual_stride + i];
        y[ulong(row) * a.y_stride + i] = value;
    }
}
