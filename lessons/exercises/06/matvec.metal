// Exercise 06, matvec: a simdgroup multiplies one row of weights with one row of x.
//
// Complete `row_times_x`; the kernel around it is whole: it finds rows and outputs, gates, adds bias
// and residual, for every weight type of the engine. Check:  python -m lessons.check 06
// From tinyrvllm/shaders/matmul.h and quant.h: load_weights, dequantised, weight_row, finish,
// MatmulArgs.
#include "matmul.h"

constant uint ROWS [[function_constant(2)]];
constant uint OUTPUTS [[function_constant(3)]];
constant bool NORMED [[function_constant(4)]];   // never here

// The sum over k of weight[k] * x[k], k < inputs; every lane returns it.
inline float row_times_x(device const uchar *weights,   // a row of weights, as the file has it
                         device const float *x,         // [inputs]
                         uint inputs, uint lane) {
    // Weights come in units of 16: unit u holds numbers 16 u to 16 u + 15. This lane takes units
    // lane, lane + 32, ... A unit may go on past `inputs`; there its weights are 0, but x has ended.
    float sum = 0.0f;
    for (uint unit = 0; unit * 16 < inputs; unit += 32) {
        uint start = unit * 16;   // number of its first weight
        Weights w = load_weights(weights, unit, inputs);
        for (ushort i = 0; i < 16; i++) {
            float weight = dequantised(w, i / 4)[i % 4];   // number start + i
        }
    }

    // The sum over all lanes.
    float total = sum;
    return total;
}

[[max_total_threads_per_threadgroup(64)]]
kernel void matvec(device const float *x [[buffer(0)]], device const uchar *weight [[buffer(1)]],
                   device const uchar *up [[buffer(2)]], device const float *bias [[buffer(3)]],
                   device const float *residual [[buffer(4)]], device float *y [[buffer(5)]],
                   device const float *norm_weight [[buffer(6)]],
                   device const float *squares_in [[buffer(7)]],
                   device float *squares_out [[buffer(8)]],
                   constant MatmulArgs &a [[buffer(9)]],
                   uint2 group [[threadgroup_position_in_grid]],
                   uint lane [[thread_index_in_simdgroup]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    uint owned = OUTPUTS / (GATED ? 2 : 1) * 32 / a.lanes;   // outputs of this simdgroup
    uint first = (group.x * 2 + simdgroup) * owned;
    for (uint row = group.y * 4; row < min(a.rows, group.y * 4 + 4); row++) {
        device const float *in = x + ulong(row) * a.x_stride;
        for (uint n = first; n < min(a.outputs, first + owned); n++) {
            float value = row_times_x(weight_row(weight, n, a), in, a.inputs, lane);
            float other = GATED ? row_times_x(weight_row(up, n, a), in, a.inputs, lane) : 0.0f;
            if (lane > 0) continue;
            if (GATED) y[ulong(row) * a.y_stride + n] = activate(a.activation, value) * other;
            else finish(value, row, n, bias, residual, y, a);
        }
    }
}
