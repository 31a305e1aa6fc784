"""x W^T in blocks equals x W^T, whatever BLAS this machine has."""

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Type

from tests.model.test_dequantize import random_tensor
from tinyrvllm.model import linear
from tinyrvllm.model.dequantize import Arena, dequantize, stacked

RANDOM = np.random.default_rng(0)


def in_blocks(weight: np.ndarray, width: int) -> np.ndarray:
    """[outputs, inputs] as [outputs / width, inputs, width]; as it is for a width of 0."""
    if not width:
        return weight
    return np.ascontiguousarray(weight.reshape(-1, width, weight.shape[1]).transpose(0, 2, 1))


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 8, 9, 16, 23, 33])
@pytest.mark.parametrize(("width", "inputs"), [(64, 96), (32, 96), (32, 9000)])
def test_blocks(rows: int, width: int, inputs: int) -> None:
    weight = RANDOM.standard_normal((128, inputs), np.float32)
    x = RANDOM.standard_normal((rows, inputs), np.float32)
    found = linear.linear(x, in_blocks(weight, width))
    assert found.shape == (rows, 128)
    np.testing.assert_allclose(found, x @ weight.T, atol=1e-4 * np.sqrt(inputs))


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("rows", [3, 20])
def test_threads_share_a_large_matrix(
    threads: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit as one thread alone; five blocks, so that of seven parts two are empty."""
    blocks = RANDOM.standard_normal((5, 96, 64), np.float32)
    x = RANDOM.standard_normal((rows, 96), np.float32)
    alone = linear.linear(x, blocks)
    monkeypatch.setattr(linear, "SHARED_BYTES", 1)
    monkeypatch.setattr(linear, "LEAD", blocks.nbytes // 5)
    monkeypatch.setattr(linear, "threads", lambda: threads)
    np.testing.assert_array_equal(linear.linear(x, blocks), alone)


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("rows", [0, 1, 3, 20])
@pytest.mark.parametrize(("width", "down_width"), [(64, 64), (32, 64), (64, 0), (0, 0)])
def test_threads_share_neurons(
    threads: int, rows: int, width: int, down_width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the formula has it, whichever matrices are in blocks; of seven threads some have none."""
    x, gate, up, down = (
        RANDOM.standard_normal(shape, np.float32) for shape in [(rows, 96), *[(256, 96)] * 2, (64, 256)]
    )
    monkeypatch.setattr(linear, "SHARED_BYTES", 1)
    monkeypatch.setattr(linear, "LEAD", 1 << 14)
    monkeypatch.setattr(linear, "threads", lambda: threads)
    gate_up = in_blocks(np.concatenate([gate, up]), width)
    found = linear.gated(x, gate_up, in_blocks(down, down_width), np.tanh)
    assert found.shape == (rows, 64)
    np.testing.assert_allclose(found, (np.tanh(x @ gate.T) * (x @ up.T)) @ down.T, atol=2e-3)


@pytest.mark.parametrize(
    ("lead", "count", "sizes"),
    [(0, 1, [48]), (0, 2, [24, 24]), (0.25, 2, [30, 18]), (0.25, 4, [21, 9, 9, 9]), (7, 2, [48])],
)
def test_the_first_part_has_a_lead(lead: float, count: int, sizes: list[int]) -> None:
    assert [part.stop - part.start for part in linear.parts(48, lead, count)] == sizes


def test_rows_do_not_depend_on_how_they_are_grouped() -> None:
    """Rows of zeros that fill the last group change nothing."""
    blocks = RANDOM.standard_normal((3, 96, 64), np.float32)
    x = RANDOM.standard_normal((9, 96), np.float32)
    together = linear.linear(x, blocks)
    np.testing.assert_allclose(linear.linear(x[8:], blocks), together[8:], atol=1e-4)


@pytest.mark.parametrize(
    ("outputs", "inputs", "width"),
    [((576, 192, 192), 576, 64), ((896, 128, 128), 896, 64), ((2048,), 2560, 32),
     ((896,), 4864, 32), ((64,), 20000, 0), ((100,), 576, 0), ((96,), 576, 32)],
)  # fmt: skip
def test_a_block_is_as_wide_as_small_products_allow(
    outputs: tuple[int, ...], inputs: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "has_small_products", lambda: True)
    assert linear.block_width(outputs, inputs, np.float32) == width
    assert linear.block_width(outputs, inputs, np.float64) == 0
    monkeypatch.setattr(linear, "has_small_products", lambda: False)
    assert linear.block_width(outputs, inputs, np.float32) == 0


def test_stacked_in_blocks() -> None:
    """700 x 256 is more than is dequantised at a time."""
    tensors = [random_tensor(Type.F16, 704, 256), random_tensor(Type.F16, 64, 256)]
    tensors = [t._replace(data=t.data & np.uint8(0x3F)) for t in tensors]  # no NaN
    found = stacked(tensors, Arena(768 * 256, np.float32), 64)
    expected = np.concatenate([dequantize(data, kind) for data, kind, _ in tensors])
    np.testing.assert_array_equal(found.transpose(0, 2, 1).reshape(768, 256), expected)
