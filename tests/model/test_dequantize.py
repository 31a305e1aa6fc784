"""Our dequantisers against those of the `gguf` package, bit for bit."""

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Type
from gguf.quants import dequantize as gguf_dequantize

from tinyrvllm.model.dequantize import Arena, dequantize, stacked
from tinyrvllm.model.weights import RawTensor

RANDOM = np.random.default_rng(0)
OURS = (Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1)
OTHERS = (Type.F32, Type.F16, Type.BF16, Type.Q4_K, Type.Q6_K)


def random_tensor(kind: Type, rows: int, columns: int) -> RawTensor:
    """Blocks of any bits, their scales among them."""
    block, block_bytes = GGML_QUANT_SIZES[kind]
    data = RANDOM.integers(0, 256, (rows, columns // block * block_bytes), np.uint8)
    return RawTensor(data, kind, (rows, columns))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # random scales are infinite and NaN, too
@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.name)
def test_every_bit_pattern(kind: Type) -> None:
    data = random_tensor(kind, 300, 320).data
    np.testing.assert_array_equal(dequantize(data, kind), gguf_dequantize(data, kind))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", OURS + OTHERS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("rows, columns", [(1, 512), (700, 256), (513, 1024), (3, 131072)])
def test_stacked_matrices(kind: Type, rows: int, columns: int, dtype: type) -> None:
    tensors = [random_tensor(kind, rows, columns), random_tensor(Type.Q8_0, 2, columns)]
    found = stacked(tensors, Arena((rows + 2) * columns, dtype))
    expected = np.concatenate([gguf_dequantize(data, kind) for data, kind, _ in tensors])
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, expected)
