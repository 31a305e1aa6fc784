"""Same input, same bits; and within one kernel a row's result depends on that row alone."""

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray

from tinyrvllm.kernels import attention, shapes
from tinyrvllm.kernels.case_matmul import MATMULS, Kind, random_weights
from tinyrvllm.kernels.cases import case, floats, ints, prepare
from tinyrvllm.kernels.kv_cache import KvLayout
from tinyrvllm.kernels.launch import run, whole
from tinyrvllm.kernels.matmul import Matmul
from tinyrvllm.kernels.quant import Matrix
from tinyrvllm.mtl.device import Device

RNG = np.random.default_rng


def multiply(device: Device, kernel: str, x: NDArray, weight: Matrix) -> NDArray:
    """x W^T by the named kernel, as float32 [rows, outputs]."""
    y = device.buffer(4 * len(x) * weight.outputs)
    run(device, MATMULS[kernel](Matmul(floats(device, x), weight, whole(y), len(x))))
    return y.numpy(np.float32, (len(x), weight.outputs)).copy()


@pytest.mark.parametrize("kernel", shapes.MATMULS)
def test_a_row_does_not_depend_on_the_other_rows(device: Device, kernel: str) -> None:
    raw = random_weights(Kind.Q8_0, 300, 576, RNG(1))
    weight = Matrix(whole(device.from_numpy(raw)), Kind.Q8_0, 300, 576)
    x = RNG(2).normal(size=(17, 576)).astype(np.float32)
    together = multiply(device, kernel, x, weight)
    for rows in ([0], [3], [16], [5, 3], [1, 2, 3], [9, 0, 4, 2], list(range(16, 4, -1))):
        np.testing.assert_array_equal(multiply(device, kernel, x[rows], weight), together[rows])


@pytest.mark.parametrize(
    "each",
    [c for c in shapes.TABLE if c.kernel in ("rmsnorm", "softmax", "attend_one", "attend_tile")]
    [::4],
    ids=str,
)  # fmt: skip
def test_the_same_input_gives_the_same_bits(device: Device, each: shapes.Case) -> None:
    prepared = prepare(each, device, RNG(3))
    run(device, *prepared.launches)
    first = prepared.result().copy()
    run(device, *prepared.launches)
    np.testing.assert_array_equal(prepared.result(), first)


def test_decoding_does_not_depend_on_the_bucket(device: Device) -> None:
    """One split or many, alone or in a batch: the same bits."""
    shape = {"heads": 6, "kv_heads": 2, "head_dim": 64}
    results = []
    for bound in (0, 513, 3000):
        prepared = prepare(
            case("attend_one", contexts=(512, 40), **shape, bound=bound), device, RNG(4)
        )
        run(device, *prepared.launches)
        results.append(prepared.result().copy())
    np.testing.assert_array_equal(results[1], results[0])
    np.testing.assert_array_equal(results[2], results[0])


@pytest.mark.parametrize("head_dim", [64, 144])
def test_chunks_of_a_prompt_give_the_bits_of_the_whole(device: Device, head_dim: int) -> None:
    layout, heads, tokens = KvLayout(8, 16, 1, head_dim), 2, 100
    rng = RNG(5)
    q = rng.normal(size=(tokens, heads, head_dim)).astype(np.float32)
    pools = [
        whole(device.from_numpy(pack(rng.normal(size=(128, 1, head_dim)))))
        for pack in (layout.pack_k, layout.pack_v)
    ]
    table = ints(device, rng.permutation(8))
    whole_prompt = None
    for chunks in ([(0, 100)], [(0, 37), (37, 60), (60, 100)]):
        out = np.empty_like(q)
        for first, last in chunks:
            result = device.buffer(4 * (last - first) * heads * head_dim)
            problem = attention.Attention(
                floats(device, q[first:last]), *pools, table, ints(device, [last]),
                ints(device, [0, last - first]), whole(result), layout, heads, 1, 8, 0.1, window=50,
            )  # fmt: skip
            run(device, attention.prefill(problem, last - first))
            out[first:last] = result.numpy(np.float32, out[first:last].shape)
        if whole_prompt is None:
            whole_prompt = out
        np.testing.assert_array_equal(out, whole_prompt)


def test_a_fused_norm_is_the_norm(device: Device) -> None:
    """matvec with its norm folded in, against the same float64 as norm then matvec."""
    fused = case("matvec", kind="F32", rows=2, outputs=64, inputs=576, norm=True)
    prepared = prepare(fused, device, RNG(6))
    assert [launch.kernel for launch in prepared.launches] == ["matvec"]
    run(device, *prepared.launches)
    assert prepared.error() < 1e-6


def test_a_launch_is_data() -> None:
    """Launch and its parts are frozen: a recorded program cannot change under its readers."""
    for kind in (attention.Attention, Matmul, Matrix, KvLayout):
        assert dataclasses.fields(kind)
        assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
