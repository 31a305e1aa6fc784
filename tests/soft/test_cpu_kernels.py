"""Typical kernels against numpy, on shapes that fit nothing, on one OS thread and on two."""

import numpy as np
import pytest

from .launch import launch, u32

f16, f32 = np.float16, np.float32
ROWS, KS = (7, 33, 130), (32, 96, 960)
random = np.random.default_rng(0)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> int:
    return request.param


def normal(*shape: int, dtype: type = f32) -> np.ndarray:
    return random.standard_normal(shape).astype(dtype)


def close(found: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    np.testing.assert_allclose(
        found.astype(f32), expected.astype(f32), rtol=tolerance, atol=tolerance
    )


def to_bfloat(a: np.ndarray) -> np.ndarray:
    bits = a.astype(f32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bfloat(a: np.ndarray) -> np.ndarray:
    return (a.astype(np.uint32) << 16).view(f32)


@pytest.mark.parametrize("n", [1, 7, 33, 130, 1000])
def test_add(n: int, threads: int) -> None:
    a, b, found = normal(n), normal(n), np.zeros(n, f32)
    launch("elementwise", "add", a, b, found, u32(n), grid=(n,), group=(64,), threads=threads)
    np.testing.assert_array_equal(found, a + b)


@pytest.mark.parametrize("constants, factor", [({0: 2.5}, 2.5), ({0: 0.1, 1: True}, -f32(0.1))])
def test_function_constants(constants: dict[int, float | bool], factor: float) -> None:
    a = normal(100)
    expected = a * f32(factor)
    launch("elementwise", "scale", a, grid=(100,), group=(32,), constants=constants)
    np.testing.assert_array_equal(a, expected)


def test_a_missing_function_constant_is_named() -> None:
    with pytest.raises(ValueError, match=r"needs function constant 0 \('factor', float\)"):
        launch("elementwise", "scale", normal(4), grid=(4,), group=(4,))


def test_atomics_over_threadgroups(threads: int) -> None:
    x, bins = random.integers(0, 256, 5000).astype(np.uint8), np.zeros(256, np.uint32)
    launch("elementwise", "histogram", x, bins, grid=(5000,), group=(256,), threads=threads)
    np.testing.assert_array_equal(bins, np.bincount(x, minlength=256))


def test_positions_in_a_grid_that_no_threadgroup_fits() -> None:
    grid, group = np.array([7, 5, 3]), np.array([4, 2, 2])
    found = np.zeros((3, 5, 7, 8), np.uint32)
    launch("elementwise", "positions", found, grid=tuple(grid), group=tuple(group))
    decimal = np.array([1, 10, 100])
    for z, y, x in np.ndindex(3, 5, 7):
        position = np.array([x, y, z])
        inside, which = position % group, position // group
        size = np.minimum(group, grid - which * group)
        index = (inside[2] * size[1] + inside[1]) * size[0] + inside[0]
        expected = [which @ decimal, inside @ decimal, size @ decimal, index, index % 32, index // 32]
        np.testing.assert_array_equal(found[z, y, x, :6], expected)


@pytest.mark.parametrize("n", [1, 7, 33, 130, 1000])
@pytest.mark.parametrize("group", [32, 50, 128, 256])
def test_reductions(n: int, group: int, threads: int) -> None:
    rows = 5
    shape = {"grid": (rows * group,), "group": (group,), "threads": threads}
    x, weight, y = normal(rows, n, dtype=f16), normal(n), np.zeros((rows, n), f16)
    launch("reductions", "rmsnorm", x, weight, y, u32(n), np.array([1e-5], f32), **shape)
    wide = x.astype(f32)
    close(y, wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * weight, 2e-3)

    scores, found = normal(rows, n) * 5, np.zeros((rows, n), f32)
    launch("reductions", "softmax", scores, found, u32(n), memory={0: 128}, **shape)
    e = np.exp(scores - scores.max(1, keepdims=True))
    close(found, e / e.sum(1, keepdims=True), 1e-5)


@pytest.mark.parametrize("n", [2, 33, 1000])
def test_argmax_takes_the_first_of_equals_and_no_nan(n: int) -> None:
    x, found = normal(n), np.zeros(1, np.uint32)
    x[::3], x[n // 2], x[-1] = np.nan, 9, 9
    launch("reductions", "argmax", x, found, u32(n), grid=(96,), group=(96,))
    assert found[0] == np.nanargmax(x)


@pytest.mark.parametrize("rows, k", [*zip(ROWS, KS, strict=True), (2560, 960)])
def test_matvec(rows: int, k: int, threads: int) -> None:
    w, x, y = normal(rows, k, dtype=f16), normal(k), np.zeros(rows, f32)
    groups = -(-rows // 4)
    arguments = (w, x, y, u32(k // 4), u32(rows))
    launch("matmul", "matvec_half", *arguments, grid=(groups * 128,), group=(128,), threads=threads)
    close(y, w.astype(f32) @ x, 1e-4)

    blocks = np.zeros((rows, k // 32), [("d", f16), ("q", np.int8, 32)])
    blocks["d"], blocks["q"] = 0.01, random.integers(-127, 128, (rows, k // 32, 32))
    groups = -(-rows // 8)
    arguments = (blocks, x, y, u32(k // 32), u32(rows))
    launch("matmul", "matvec_q8_0", *arguments, grid=(groups * 64,), group=(64,), threads=threads)
    dense = blocks["d"].astype(f32)[..., None] * blocks["q"]
    close(y, dense.reshape(rows, k) @ x, 1e-4)


@pytest.mark.parametrize("rows", [5, 8, 11, 16])
@pytest.mark.parametrize("n, k", [*zip(ROWS, KS, strict=True)])
def test_ksplit(rows: int, n: int, k: int, threads: int) -> None:
    whole, columns = 8 if rows <= 8 else 16, -(-n // 8) * 8
    x, w, y = np.zeros((whole, k), f16), np.zeros((columns, k), f16), np.zeros((rows, n), f32)
    x[:rows], w[:n] = normal(rows, k), normal(n, k)
    shape = {"grid": (columns // 8 * 128,), "group": (128,), "threads": threads}
    launch("matmul", f"ksplit_{whole}", x, w, y, u32(rows, n, k, 0), **shape)
    close(y, x[:rows].astype(f32) @ w[:n].astype(f32).T, 1e-3)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("n, k", [*zip(ROWS, KS, strict=True)])
def test_gemm(rows: int, n: int, k: int, threads: int) -> None:
    x, w = normal(rows, k, dtype=f16), normal(n, k, dtype=f16)
    grid = (-(-n // 64) * 128, -(-rows // 32))
    y = np.zeros((rows, n), f32)
    mnk = u32(rows, n, k, 0)
    launch("matmul", "gemm_half", x, w, y, mnk, grid=grid, group=(128,), threads=threads)
    close(y, x.astype(f32) @ w.astype(f32).T, 1e-3)
    x, w = to_bfloat(x), to_bfloat(w)
    launch("matmul", "gemm_bfloat", x, w, y, mnk, grid=grid, group=(128,), threads=threads)
    close(y, from_bfloat(x) @ from_bfloat(w).T, 1e-3)


def test_gemm_direct(threads: int) -> None:
    x, w, y = normal(64, 96, dtype=f16), normal(128, 96, dtype=f16), np.zeros((64, 128), f32)
    shape = {"grid": (4 * 32, 2), "group": (32,), "threads": threads}
    launch("matmul", "gemm_direct", x, w, y, u32(64, 128, 96, 0), **shape)
    close(y, x.astype(f32) @ w.astype(f32).T, 1e-3)


@pytest.mark.parametrize("length", [1, 7, 33, 130])
def test_attention(length: int, threads: int) -> None:
    heads, kv_heads, count = 9, 3, -(-length // 16)
    pages = random.permutation(count + 3)[:count].astype(np.uint32)
    keys, values = (normal((count + 3) * 16, kv_heads, 64, dtype=f16) for _ in range(2))
    q, found = normal(heads, 64), np.zeros((heads, 64), f32)
    arguments = (q, keys, values, pages, found, u32(length), u32(kv_heads))
    shape = {"grid": (heads * 128,), "group": (128,), "threads": threads}
    launch("attention", "attention_decode", *arguments, **shape)
    at = pages[np.arange(length) // 16] * 16 + np.arange(length) % 16
    k, v = (a[at].astype(f32).repeat(heads // kv_heads, 1) for a in (keys, values))
    p = np.exp(np.einsum("hd,lhd->hl", q, k) / 8)
    close(found, np.einsum("hl,lhd->hd", p / p.sum(1, keepdims=True), v), 1e-4)
