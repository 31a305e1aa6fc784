"""Guarded copies of buffers, and what a dispatch is said to have touched."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyrvllm.soft.cpu import guard
from tinyrvllm.soft.cpu.execute import Dispatch, run
from tinyrvllm.soft.cpu.guard import Guard, ranges
from tinyrvllm.soft.cpu.library import compile_library

SOURCE = """#include <metal_stdlib>
using namespace metal;
kernel void copy(device const float *from [[buffer(0)]], device float *to [[buffer(1)]],
                 uint i [[thread_position_in_grid]]) {
  to[2 * i] = from[i];
}
struct Arguments { device float *values; uint n; };
kernel void through_addresses(constant Arguments &a [[buffer(0)]],
                              uint i [[thread_position_in_grid]]) {
  a.values[i] = a.n;
}
"""


def bound(array: np.ndarray, first: int = 0) -> tuple[int, int]:
    return array.ctypes.data + first, array.nbytes - first


@given(st.lists(st.booleans(), max_size=200))
def test_ranges_are_the_runs_of_set_bits(bits: list[bool]) -> None:
    found = ranges(np.packbits(np.array(bits, np.uint8), bitorder="little"), 1000)
    assert all(a < b for a, b in found)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(found))
    covered = [any(a <= 1000 + i < b for a, b in found) for i in range(len(bits))]
    assert covered == bits


def test_ranges_that_share_bytes_share_a_copy() -> None:
    one, two = np.arange(64, dtype=np.float32), np.arange(64, dtype=np.float32)
    buffers = {0: bound(one), 3: bound(one, 128), 1: bound(two)}
    guarded = Guard(buffers, writable=[3])
    assert guarded.address(3) - guarded.address(0) == 128
    writable = {tuple(sorted(r.slots)): r.writable for r in guarded.regions}
    assert writable == {(0, 3): True, (1,): False}
    assert guarded.locate(guarded.address(0) + 4) == (0, 4)
    assert guarded.locate(guarded.address(0) + 132) == (3, 4)
    assert guarded.locate(guarded.address(1) - 4) == (1, -4)
    assert guarded.locate(guarded.address(1) + (8 << 30)) == (1, 8 << 30)
    assert guarded.locate(0) is None


def test_copies_are_aligned_as_their_originals() -> None:
    array = np.zeros(256, np.uint8)
    for first in (0, 1, 4, 20):
        guarded = Guard({0: bound(array, first)}, writable=[])
        assert (guarded.address(0) - array.ctypes.data - first) % 4096 == 0


def test_what_was_written_is_copied_back_and_told() -> None:
    kernel = compile_library(SOURCE, filename="guard.metal", check=True).kernel("copy")
    a, b = np.arange(8, dtype=np.float32), np.full(16, -1, np.float32)
    dispatch = Dispatch(kernel, {0: bound(a), 1: bound(b)}, (8, 1, 1), (8, 1, 1))
    assert run([dispatch]) == []
    assert b[::2].tolist() == a.tolist() and (b[1::2] == -1).all()
    assert dispatch.touched is not None
    touched = dispatch.touched()
    assert touched.reads == [(a.ctypes.data, a.ctypes.data + 32)]
    assert touched.writes == [(b.ctypes.data + 8 * i, b.ctypes.data + 8 * i + 4) for i in range(8)]


def test_a_large_range_is_used_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "COPY_LIMIT", 64)
    kernel = compile_library(SOURCE, filename="guard.metal", check=True).kernel("copy")
    a, b = np.arange(32, dtype=np.float32), np.zeros(64, np.float32)
    assert Guard({0: bound(a)}, writable=[0]).address(0) == a.ctypes.data
    dispatch = Dispatch(kernel, {0: bound(a), 1: bound(b)}, (32, 1, 1), (32, 1, 1))
    assert run([dispatch]) == []
    assert b[::2].tolist() == a.tolist()


def test_memory_reached_through_an_address_must_be_resident() -> None:
    kernel = compile_library(SOURCE, filename="guard.metal", check=True).kernel("through_addresses")
    values = np.zeros(8, np.float32)
    arguments = np.array([values.ctypes.data, 5], np.uint64)

    def reports(resident: list[guard.Range]) -> list[str]:
        slots = {0: bound(arguments)}
        found = run([Dispatch(kernel, slots, (8, 1, 1), (8, 1, 1), resident=resident)])
        return [r.kind for r in found]

    assert reports([]) == ["out-of-bounds"]
    start = values.ctypes.data
    assert reports([(start, start + values.nbytes)]) == []
    assert values.tolist() == [5] * 8
