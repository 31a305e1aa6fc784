"""Random shapes: what holds for the table holds between its rows."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinyrvllm.kernels import shapes
from tinyrvllm.kernels.cases import case, check
from tinyrvllm.mtl.device import Device

few = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
seeds = st.integers(0, 2**32 - 1)


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
@given(st.integers(1, 5), st.integers(1, 3000), st.floats(0, 1), seeds)
def test_rows(device: Device, rows: int, columns: int, masked: float, seed: int) -> None:
    check(case("rmsnorm", rows=rows, columns=columns), device, seed)
    check(case("softmax", rows=rows, columns=columns, masked=masked), device, seed)
    check(case("argmax", rows=rows, columns=columns, values="nan"), device, seed)
    k = int(np.random.default_rng(seed).integers(1, min(columns, 256) + 1))
    check(case("top_k", rows=rows, columns=columns, k=k, values="nan"), device, seed)


# context, queries of one sequence; the queries are its last tokens
sequences = st.lists(
    st.integers(1, 150).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))),
    min_size=1, max_size=4,
)  # fmt: skip


@few
@given(sequences, st.sampled_from((0, 1, 5, 40, 200)), st.sampled_from((0.0, 3.0)), seeds)
def test_attention(
    device: Device, batch: list[tuple[int, int]], window: int, softcap: float, seed: int
) -> None:
    contexts, queries = zip(*batch, strict=True)
    shape = {"contexts": contexts, "queries": queries, "window": window, "softcap": softcap}
    for kernel in ("attend_one", "attend_tile"):
        heads = {"heads": 6, "kv_heads": 2, "head_dim": 20}
        check(case(kernel, **shape, **heads), device, seed)


@few
@given(st.lists(st.integers(1, 12), min_size=1, max_size=4), st.booleans(), seeds)
def test_short_conv(device: Device, rows: list[int], fresh: bool, seed: int) -> None:
    check(case("short_conv", rows=tuple(rows), channels=33, taps=3, fresh=fresh), device, seed)
