"""matmul2d with operands in registers, loaded and stored as MLX's steel/gemm/nax.h does it."""

import numpy as np
import pytest

from tests.soft.stdlib import HEADER, launch
from tinyrvllm.soft.cpu.library import compile_library

RNG = np.random.default_rng(16)
# c [16, 32] = c + a b, or a b: a [16, 16], b [16, 32], or stored the other way round.
SOURCE = """
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace mpp::tensor_ops;
using mode = matmul2d_descriptor::mode;

// Element i of a lane: 16 x 16 tiles in turn, each row by row, `columns` of the whole.
ushort2 at(ushort i, ushort columns, ushort lane) {
  ushort quad = lane >> 2, tile = i / 8, across = columns / 16;
  ushort row = ((quad & 4) | ((lane >> 1) & 3)) + (i % 8 >> 2) * 8;
  ushort column = ((quad & 2) | (lane & 1)) * 4 + i % 4;
  return ushort2(tile % across * 16 + column, tile / across * 16 + row);
}
template <int N> struct Number {  // what MLX indexes its tiles with
  constexpr operator int() const thread { return N; }
};
uint run(uint x) { return simd_sum(x); }  // of the same name as matmul2d's, and an event
template <bool TA, bool TB, mode MODE>
void product(device const half *a, device const float *b, device float *c, ushort lane) {
  constexpr auto shape = matmul2d_descriptor(16, 32, 16, TA, TB, true, MODE);
  matmul2d<shape, execution_simdgroup> op;
  auto left = op.template get_left_input_cooperative_tensor<half, float, float>();
  auto right = op.template get_right_input_cooperative_tensor<half, float, float>();
  auto sums = op.template get_destination_cooperative_tensor<decltype(left), decltype(right),
                                                             float>();
  ushort wide = TB ? 16 : 32;
  vec<half, 8> tile;
  for (ushort i = 0; i < 8; i++) tile[i] = a[at(i, 16, lane).y * 16 + at(i, 16, lane).x];
  auto put = [&](auto number) {
    const auto i = number;
    left[i] = half(tile[i]);
  };
  put(Number<0>()), put(Number<1>()), put(Number<2>()), put(Number<3>());
  put(Number<4>()), put(Number<5>()), put(Number<6>()), put(Number<7>());
  for (ushort i = 0; i < 16; i++) {
    ushort2 p = at(i, wide, lane), q = at(i, 32, lane);
    right[i] = b[p.y * wide + p.x];
    sums[i] = c[q.y * 32 + q.x];
  }
  op.run(left, right, sums);
  for (ushort i = 0; i < sums.get_capacity(); i++)
    if (sums.is_valid_element(i)) {
      auto q = sums.get_multidimensional_index(i);
      c[q[1] * 32 + q[0]] = sums[i];
    }
}
kernel void products(device const half *a [[buffer(0)]], device const float *b [[buffer(1)]],
                     device float *c [[buffer(2)]], ushort lane [[thread_index_in_simdgroup]],
                     ushort simdgroup [[simdgroup_index_in_threadgroup]]) {
  a += simdgroup * 256; b += simdgroup * 512; c += simdgroup * 512;
  if (simdgroup == 0) product<false, false, mode::multiply_accumulate>(a, b, c, lane);
  else if (simdgroup == 1) product<false, true, mode::multiply_accumulate>(a, b, c, lane);
  else if (simdgroup == 2) product<true, false, mode::multiply_accumulate>(a, b, c, lane);
  else if (run(lane) == 31 * 16) product<true, true, mode::multiply>(a, b, c, lane);
}
"""


@pytest.mark.parametrize("check", [False, True])
def test_product_of_registers(check: bool) -> None:
    library = compile_library(HEADER + SOURCE, filename="cooperative.metal", check=check)
    a = RNG.normal(size=(4, 16, 16)).astype(np.float16)
    b, c = (RNG.normal(size=(4, 512)).astype(np.float32) for _ in "bc")
    want = c.astype(np.float64)
    want[3] = 0
    for n, (ta, tb) in enumerate([(False, False), (False, True), (True, False), (True, True)]):
        left = a[n].T if ta else a[n]
        right = b[n].reshape(32, 16).T if tb else b[n].reshape(16, 32)
        want[n] += (left.astype(np.float64) @ right).reshape(512)
    launch(library.kernel("products"), {0: a, 1: b, 2: c}, (128, 1, 1), (128, 1, 1))
    np.testing.assert_allclose(c, want, rtol=1e-5, atol=1e-5)
