"""Random shapes: what holds for the table holds between its rows.

What a pipeline is compiled for (types, head_dim, ...) varies in the long tests alone. The others
draw the same examples every time.
"""

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinyrvllm.kernels import shapes
from tinyrvllm.kernels.cases import case, check
from tinyrvllm.mtl.device import Device

one_device = [HealthCheck.function_scoped_fixture]
few = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=one_device)
many = settings(max_examples=100, deadline=None, suppress_health_check=one_device)
seeds = st.integers(0, 2**32 - 1)
# A weight type and a number of columns that it can have.
types = st.sampled_from(shapes.KINDS).flatmap(
    lambda kind: st.tuples(
        st.just(kind),
        st.integers(1, 512 // GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0]).map(
            lambda n: n * GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0]
        ),
    )
)


@few
@given(
    st.sampled_from(shapes.MATMULS), st.integers(1, 40), st.integers(1, 90),
    st.integers(1, 150), st.booleans(), st.booleans(), seeds,
)  # fmt: skip
def test_matmul(
    device: Device, kernel: str, rows: int, outputs: int, inputs: int, bias: bool, residual: bool,
    seed: int,
) -> None:  # fmt: skip
    shape = {"kind": "F16", "rows": rows, "outputs": outputs, "inputs": inputs}
    check(case(kernel, **shape, bias=bias, residual=residual), device, seed)


@few
@given(st.sampled_from(("ksplit", "gemm")), types, st.integers(1, 40), st.integers(1, 90), seeds)
def test_matmul_of_any_type(
    device: Device, kernel: str, kind: tuple[str, int], rows: int, outputs: int, seed: int
) -> None:
    shape = {"kind": kind[0], "inputs": kind[1], "rows": rows, "outputs": outputs}
    check(case(kernel, **shape), device, seed)


@pytest.mark.long
@many
@given(
    st.sampled_from(shapes.MATMULS), types, st.integers(1, 40), st.integers(1, 600),
    st.sampled_from(("", "silu", "gelu_tanh", "gelu")), seeds,
)  # fmt: skip
def test_matmul_of_any_type_and_form(
    device: Device, kernel: str, kind: tuple[str, int], rows: int, outputs: int, activation: str,
    seed: int,
) -> None:  # fmt: skip
    shape = {"kind": kind[0], "inputs": kind[1], "rows": rows, "outputs": outputs}
    check(case(kernel, **shape, activation=activation), device, seed)


@few
@given(types, st.integers(1, 5), st.floats(0.1, 30), st.booleans(), seeds)
def test_embedding(
    device: Device, kind: tuple[str, int], rows: int, scale: float, squares: bool, seed: int
) -> None:
    shape = {"kind": kind[0], "columns": kind[1], "rows": rows}
    check(case("embed", **shape, scale=scale, squares=squares), device, seed)


@few
@given(st.integers(1, 5), st.integers(1, 3000), st.floats(0, 1), st.booleans(), seeds)
def test_rows(
    device: Device, rows: int, columns: int, masked: float, residual: bool, seed: int
) -> None:
    check(case("rmsnorm", rows=rows, columns=columns, residual=residual), device, seed)
    check(case("softmax", rows=rows, columns=columns, masked=masked), device, seed)
    check(case("argmax", rows=rows, columns=columns, values="nan"), device, seed)
    k = int(np.random.default_rng(seed).integers(1, min(columns, 256) + 1))
    check(case("top_k", rows=rows, columns=columns, k=k, values="nan"), device, seed)


@few
@given(
    st.integers(1, 9), st.integers(1, 9000), st.sampled_from((1, 8, 16)), st.integers(1, 5), seeds
)
def test_advance(
    device: Device, rows: int, columns: int, block_size: int, blocks: int, seed: int
) -> None:
    shape = {"rows": rows, "columns": columns, "block_size": block_size, "blocks": blocks + 1}
    check(case("advance", **shape), device, seed)


@few
@given(st.integers(1, 3000), st.sampled_from(("silu", "gelu_tanh", "gelu")), seeds)
def test_elements(device: Device, count: int, activation: str, seed: int) -> None:
    for kernel in ("add", "softcap", "copy", "to_half", "to_float"):
        check(case(kernel, count=count), device, seed)
    check(case("gate", count=count, activation=activation), device, seed)
    check(case("multiply_adds", count=count, rounds=3), device, seed)


@few
@given(
    st.integers(1, 20), st.integers(1, 9), st.integers(1, 3), st.integers(0, 9),
    st.integers(0, 130_000), seeds,
)  # fmt: skip
def test_rope(
    device: Device, rows: int, heads: int, kv_heads: int, pairs: int, position: int, seed: int
) -> None:
    shape = {"rows": rows, "heads": heads, "kv_heads": kv_heads, "rope_dim": 2 * pairs}
    check(case("rope", **shape, head_dim=18, norm=True, position=position), device, seed)


@pytest.mark.long
@many
@given(
    st.integers(1, 256), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 128),
    st.sampled_from((1, 2, 8, 32)), seeds,
)  # fmt: skip
def test_rope_of_any_head_dim(
    device: Device, head_dim: int, interleaved: bool, norm: bool, f32: bool, pairs: int,
    block_size: int, seed: int,
) -> None:  # fmt: skip
    shape = {"head_dim": head_dim, "rope_dim": 2 * min(pairs, head_dim // 2)}
    forms = {"interleaved": interleaved, "norm": norm, "f32": f32, "block_size": block_size}
    check(case("rope", rows=3, heads=3, kv_heads=2, **shape, **forms), device, seed)


# context, queries of one sequence; the queries are its last tokens
sequences = st.lists(
    st.integers(1, 150).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))),
    min_size=1, max_size=4,
)  # fmt: skip
windows, softcaps = st.sampled_from((0, 1, 5, 40, 200)), st.sampled_from((0.0, 3.0))
Batch = list[tuple[int, int]]


@few
@given(sequences, windows, softcaps, st.integers(1, 9), st.integers(1, 3), seeds)
def test_attention(
    device: Device, batch: Batch, window: int, softcap: float, ratio: int, kv_heads: int, seed: int
) -> None:
    contexts, queries = zip(*batch, strict=True)
    shape = {"contexts": contexts, "queries": queries, "window": window, "softcap": softcap}
    check(case("attend_one", **shape, heads=6, kv_heads=2, head_dim=20), device, seed)
    heads = {"heads": ratio * kv_heads, "kv_heads": kv_heads}
    check(case("attend_tile", **shape, **heads, head_dim=18), device, seed)
    check(case("attend_wide", **shape, **heads, head_dim=130), device, seed)
    first = shape | {"contexts": contexts[:1], "queries": queries[:1]}
    check(case("naive", **first, **heads, head_dim=64), device, seed)


@pytest.mark.long
@many
@given(
    sequences, windows, st.integers(1, 256), st.booleans(), st.sampled_from((1, 2, 8, 32)),
    st.integers(1, 9), seeds,
)  # fmt: skip
def test_attention_of_any_head_dim(
    device: Device, batch: Batch, window: int, head_dim: int, f32: bool, block_size: int,
    ratio: int, seed: int,
) -> None:  # fmt: skip
    contexts, queries = zip(*batch, strict=True)
    shape = {"contexts": contexts, "queries": queries, "window": window, "head_dim": head_dim}
    forms = {"heads": 2 * ratio, "kv_heads": 2, "f32": f32, "block_size": block_size}
    tiled = "attend_wide" if head_dim > (64 if f32 else 128) else "attend_tile"
    for kernel in ("attend_one", tiled):
        check(case(kernel, **shape, **forms), device, seed)


@few
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=4), st.integers(1, 200),
    st.integers(2, 4), st.booleans(), seeds,
)  # fmt: skip
def test_short_conv(
    device: Device, rows: list[int], channels: int, taps: int, fresh: bool, seed: int
) -> None:
    shape = {"rows": tuple(rows), "channels": channels, "taps": taps}
    check(case("short_conv", **shape, fresh=fresh), device, seed)
