// gemm_tensor: gemm with Metal 4's matmul2d, which reaches the matrix units that an M5 has beside
// its ALUs. Needs macOS 26 (Metal 4); kernels/gemm_tensor.py asks the device whether it compiles
// and whether one small product is right, and it is off unless wanted.
//
// Version ladder
//   1  gemm: 8x8 simdgroup matrices, whose products run on the ordinary ALUs
//   2  this file: the same tiles, but one cooperative 32 x 64 x 32 product of the whole
//      threadgroup. Its speed is unknown: nobody has run it
//   Not tried: operands straight from device memory, which F16 weights would allow.
//
// Design points (gemm.h has those of the tiles)
// 1. Tiles of 32 rows, 64 outputs and 32 of K for 4 simdgroups are what ggml's Metal backend uses.
//    A tensor's dimension 0 is the contiguous one: a tile [rows][STEP] has extents (STEP, rows).
//    The product is "NT": x [32, K] times W [64, K] transposed.
// 2. Sums live in a cooperative tensor: each thread holds some elements, and which ones is Apple's
//    secret. It is only zeroed, accumulated into and stored; is_valid_element guards the elements
//    that a thread does not own. (The specification of June 2025
//    says get_mask, which Apple's header does not have.)
// 3. multiply_accumulate into zeros: whether plain `multiply` overwrites or adds, Apple's comments
//    leave open.
// 4. float times half into float is in Apple's table of types (MSL 4, 7.2.1), so activations stay
//    float. relaxed_precision is false: true lets it cut mantissas of float operands, and may be
//    what makes it fast; to be measured on an M5 before it is changed.
// 5. All threads come to run(), which may contain a barrier of its own; barriers around it order
//    the tiles. They are not padded: how matmul2d reads them is its own business. 12.0 KB of
//    threadgroup memory for float tiles and 8.0 KB for half, the output's staging included.
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>

#include "gemm.h"

using namespace mpp::tensor_ops;

template <typename T, typename T4>
inline void multiply(threadgroup float *shared, device const float *x, device const uchar *weight,
                     device const uchar *up, device const float *bias,
                     device const float *residual, device float *y, constant MatmulArgs &a,
                     uint2 group, uint thread_index) {
    constexpr auto shape =
        matmul2d_descriptor(TILE_ROWS, TILE_OUTPUTS, STEP, false, true, false,
                            matmul2d_descriptor::mode::multiply_accumulate);
    matmul2d<shape, execution_simdgroups<THREADS / 32>> product;
    threadgroup T *w_memory = (threadgroup T *)(shared + TILE_ROWS * STEP);
    auto x_tile = tensor<threadgroup float, dextents<int32_t, 2>, tensor_inline>(
        shared, dextents<int32_t, 2>(STEP, TILE_ROWS));
    auto w_tile = tensor<threadgroup T, dextents<int32_t, 2>, tensor_inline>(
        w_memory, dextents<int32_t, 2>(STEP, TILE_OUTPUTS));
    auto out = tensor<threadgroup float, dextents<int32_t, 2>, tensor_inline>(
        shared, dextents<int32_t, 2>(TILE_OUTPUTS, TILE_ROWS));
    auto sums =
        product.template get_destination_cooperative_tensor<decltype(x_tile), decltype(w_tile),
                                                            float>();
    UNROLL for (ushort i = 0; i < sums.get_capacity(); i++) {
        if (sums.is_valid_element(i)) sums[i] = 0.0f;
    }
    uint first_row = group.y * TILE_ROWS, first = group.x * tile_width();
    for (uint k = 0; k < a.inputs; k += STEP) {
        stage_x<STEP>(shared, x, first_row, k, thread_index, a);
        stage_w<T, T4, STEP>(w_memory, weight, up, first, k, thread_index, a);
        threadgroup_barrier(mem_flags::mem_threadgroup);     // the tiles are complete
        product.run(x_tile, w_tile, sums);
        threadgroup_barrier(mem_flags::mem_threadgroup);     // the tiles may be overwritten
    }
    sums.store(out);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    finish_tile<TILE_OUTPUTS>(shared, first_row, first, thread_index, bias, residual, y, a);
}

[[max_total_threads_per_threadgroup(128)]]
kernel void gemm_tensor_half(GEMM_ARGUMENTS) {
    alignas(16) threadgroup float shared[TILE_ROWS * TILE_OUTPUTS];   // x, w: 4 + 4 KB
    multiply<half, half4>(shared, x, weight, up, bias, residual, y, a, group, thread_index);
}

[[max_total_threads_per_threadgroup(128)]]
kernel void gemm_tensor_float(GEMM_ARGUMENTS) {
    alignas(16) threadgroup float shared[TILE_ROWS * STEP + TILE_OUTPUTS * STEP];
    multiply<float, float4>(shared, x, weight, up, bias, residual, y, a, group, thread_index);
}
