"""The language and its numbers: expressions, half and float arithmetic, divergence, memory."""

import numpy as np
import pytest

from .launch import launch, library, u32
from .stdlib import launch as run_arrays
from .stdlib import library as compiled

f16, f32 = np.float16, np.float32
LANES = np.arange(32)


def test_expressions() -> None:
    fields = [("rows", "u4"), ("pad", "u4", 3), ("origin", "f4", 4), ("scale", "f2"), ("end", "u2", 7)]
    shape = np.zeros(1, fields)
    shape["rows"], shape["origin"], shape["scale"] = 3, [0, 0, 0.5, 0], 0.25
    packed, found = np.arange(6, dtype=f32), np.zeros((2, 20), f32)
    launch("language", "expressions", found, packed, shape, grid=(2,), group=(2,))
    expected = [4.5, 3.5, 4, 6, 210, 0x3FC00000, 1, 4, 8, 1.5, 13, 0, 1]  # as in the comments there
    expected += [31, 42, 8, f32(1 / 3), 6, 3.75, 48]
    np.testing.assert_array_equal(found[0], np.array(expected, f32))
    assert found[1, 4] == 3 + 40 + 500


def test_half_rounds_each_operation_as_numpy_does() -> None:
    n = 4096
    bits = np.random.default_rng(1).integers(0, 65536, (n, 2)).astype(np.uint16)
    ab, found = bits.view(f16), np.zeros((n, 4), f16)
    launch("language", "half_arithmetic", ab, found, grid=(n,), group=(64,))
    a, b = ab[:, 0], ab[:, 1]
    with np.errstate(all="ignore"):
        wide = (a.astype(f32) * b.astype(f32)).astype(f16)
        expected = np.stack([a * b + a, a / b, np.sqrt(abs(a)), wide], 1)
    same = found.view(np.uint16) == expected.view(np.uint16)
    same |= np.isnan(found) & np.isnan(expected)
    assert same.all(), f"{(~same).sum(0)} of {n} results differ from numpy's float16"


def test_float_products_round_before_they_are_added() -> None:
    n = 4096
    abc, found = np.random.default_rng(2).standard_normal((n, 4)).astype(f32), np.zeros((n, 2), f32)
    launch("language", "float_arithmetic", abc, found, grid=(n,), group=(64,))
    a, b, c = abc[:, 0], abc[:, 1], abc[:, 2]
    np.testing.assert_array_equal(found[:, 0], a * b + c)
    exact = (a.astype(np.float64) * b + c).astype(f32)  # rounds twice at most in the 54th bit
    np.testing.assert_array_equal(found[:, 1], exact)


def test_diverged_lanes_compute_among_themselves_and_meet_again() -> None:
    found = np.zeros((2, 2, 32), f32)
    launch("language", "divergence", found, grid=(64,), group=(64,))
    for simdgroup in range(2):
        np.testing.assert_array_equal(found[0, simdgroup], np.where(LANES < 10, 55, 32))
        turns = LANES % 3  # in turn k, the lanes that still loop count themselves
        added = sum(np.where(turns > k, (turns > k).sum(), 0) for k in range(2))
        assert (found[1, simdgroup] == (LANES + 1 + added).sum()).all()


def test_threadgroup_variables_of_sibling_blocks_do_not_overlap() -> None:
    found = np.zeros(64, f32)
    launch("language", "sibling_blocks", found, grid=(64,), group=(64,))
    np.testing.assert_array_equal(found, 2.0 * np.arange(63, -1, -1) + 100)
    assert library("language").kernel("sibling_blocks").static_threadgroup_bytes == 512


def test_threadgroup_variables_lie_at_multiples_of_16() -> None:
    declared = "threadgroup char a[1]; threadgroup half b[8]; threadgroup char c[17]; threadgroup float d;"
    places = "out[0] = (ulong)a & 15; out[1] = (ulong)b & 15; out[2] = (ulong)c & 15; out[3] = (ulong)&d & 15;"
    order = "out[4] = (threadgroup char *)&d - a;"
    made = compiled(f"kernel void k(device int *out [[buffer(0)]]) {{ {declared} {places} {order} }}").kernel("k")
    assert made.static_threadgroup_bytes == 16 + 16 + 32 + 4
    found = np.full(5, -1, np.int32)
    run_arrays(made, {0: found}, (1, 1, 1), (1, 1, 1))
    assert found.tolist() == [0, 0, 0, 0, 64]


def test_simd_operations_inside_a_struct() -> None:
    found = np.zeros(64, f32)
    launch("language", "scratch_struct", found, grid=(64,), group=(64,))
    np.testing.assert_array_equal(found, np.repeat([LANES.sum(), (LANES + 32).sum()], 32))


def test_argument_buffer() -> None:
    out, shape = np.zeros(8, f32), np.zeros(48, np.uint8)
    shape[:4].view(np.uint32)[0] = 5
    pointers = np.array([out.ctypes.data, shape.ctypes.data], np.uint64)
    reached = (out, shape)
    launch("language", "argument_buffer", pointers, grid=(8,), group=(8,), resident=reached)
    np.testing.assert_array_equal(out, 5 + np.arange(8))


@pytest.mark.parametrize("n", [32, 50, 100])
def test_lanes_that_returned_take_no_part(n: int) -> None:
    found = np.full(n, -1, f32)
    launch("language", "early_return", found, grid=(n,), group=(64,))
    tid = np.arange(n) % 64
    active = np.arange(n) % 32 < 20
    start = np.arange(n) // 32 * 32
    sums = [tid[s : s + 32][active[s : s + 32]].sum() for s in start]
    np.testing.assert_array_equal(found, np.where(active, sums, -1))


def test_simd_sum_adds_halves_of_the_lanes() -> None:
    """The documented order: lane i to lane i + 16, then 8, 4, 2 and 1 apart."""
    x = expected = np.random.default_rng(3).standard_normal(32).astype(f32)
    while len(expected) > 1:
        half = len(expected) // 2
        expected = expected[:half] + expected[half:]
    y, n = np.zeros(1, f32), u32(1)
    w = np.zeros((1, 32, 4), f16)
    w[..., 0] = 1
    spread = np.zeros((32, 4), f32)
    spread[:, 0] = x
    launch("matmul", "matvec_half", w, spread, y, u32(32), n, grid=(32,), group=(32,))
    assert y[0] == expected[0]
