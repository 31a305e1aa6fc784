"""Atomics, with many threads at once on both OS threads."""

import numpy as np
import pytest

from tests.soft.stdlib import library, run_kernel

RNG = np.random.default_rng(11)
N = 5000
SOURCE = """
#define EACH(T, NAME, OP) kernel void NAME(device const T *in [[buffer(0)]], device atomic<T> *out [[buffer(1)]], \\
    uint i [[thread_position_in_grid]]) { atomic_##OP##_explicit(out, in[i], memory_order_relaxed); }
EACH(int, int_add, fetch_add) EACH(int, int_sub, fetch_sub) EACH(int, int_max, fetch_max) EACH(int, int_min, fetch_min)
EACH(int, int_and, fetch_and) EACH(int, int_or, fetch_or) EACH(int, int_xor, fetch_xor)
EACH(uint, uint_add, fetch_add) EACH(uint, uint_max, fetch_max) EACH(uint, uint_min, fetch_min)
EACH(float, float_add, fetch_add) EACH(float, float_sub, fetch_sub)
EACH(ulong, ulong_max, max) EACH(ulong, ulong_min, min)

kernel void tickets(device atomic_uint *next [[buffer(0)]], device uint *taken [[buffer(1)]],
                    uint i [[thread_position_in_grid]]) {
  taken[i] = atomic_fetch_add_explicit(next, 1u, memory_order_relaxed);
}
kernel void by_compare(device atomic_int *total [[buffer(0)]], device const int *in [[buffer(1)]],
                       uint i [[thread_position_in_grid]]) {
  int old = atomic_load_explicit(total, memory_order_relaxed);
  while (!atomic_compare_exchange_weak_explicit(total, &old, old + in[i], memory_order_relaxed, memory_order_relaxed)) {}
}
kernel void histogram(device const uchar *in [[buffer(0)]], device uint *out [[buffer(1)]],
                      uint i [[thread_position_in_grid]], uint t [[thread_index_in_threadgroup]]) {
  threadgroup atomic_uint counts[256];
  threadgroup atomic_bool touched;
  if (t < 256) atomic_store_explicit(&counts[t], 0u, memory_order_relaxed);
  if (t == 0) atomic_store_explicit(&touched, false, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  atomic_fetch_add_explicit(&counts[in[i]], 1u, memory_order_relaxed);
  atomic_exchange_explicit(&touched, true, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
  atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst);
  if (t < 256 && atomic_load_explicit(&touched, memory_order_relaxed))
    out[i / 256 * 256 + t] = atomic_load_explicit(&counts[t], memory_order_relaxed);
}
"""


@pytest.fixture(scope="module")
def atomics():
    return library(SOURCE)


INT_CASES = [("int", op) for op in ("add", "sub", "max", "min", "and", "or", "xor")]


@pytest.mark.parametrize(
    ("kind", "op"), [*INT_CASES, *(("uint", op) for op in ("add", "max", "min"))]
)
def test_integers(atomics, kind: str, op: str) -> None:
    dtype = np.int32 if kind == "int" else np.uint32
    start = dtype(-1 if op == "and" and kind == "int" else 1000)
    x, out = RNG.integers(0, 2000, N).astype(dtype), np.array([start])
    operation = {
        "add": lambda: start + x.sum(dtype=dtype),
        "sub": lambda: start - x.sum(dtype=dtype),
        "max": lambda: max(start, x.max()),
        "min": lambda: min(start, x.min()),
        "and": lambda: start & np.bitwise_and.reduce(x),
        "or": lambda: start | np.bitwise_or.reduce(x),
        "xor": lambda: start ^ np.bitwise_xor.reduce(x),
    }[op]
    run_kernel(atomics, f"{kind}_{op}", x, out, threads=N, group=64)
    assert out[0] == operation()


@pytest.mark.parametrize("op", ["add", "sub"])
def test_floats(atomics, op: str) -> None:
    x, out = RNG.integers(0, 100, N).astype(np.float32), np.zeros(1, np.float32)
    run_kernel(atomics, f"float_{op}", x, out, threads=N, group=64)
    assert out[0] == (x.sum() if op == "add" else -x.sum())


@pytest.mark.parametrize("op", ["max", "min"])
def test_64_bits(atomics, op: str) -> None:
    x = RNG.integers(0, 2**63, N).astype(np.uint64)
    out = np.array([2**62], np.uint64)
    run_kernel(atomics, f"ulong_{op}", x, out, threads=N, group=64)
    assert out[0] == (max if op == "max" else min)(2**62, int(getattr(x, op)()))


def test_every_thread_gets_its_own_ticket(atomics) -> None:
    taken, following = np.zeros(N, np.uint32), np.zeros(1, np.uint32)
    run_kernel(atomics, "tickets", following, taken, threads=N, group=32)
    assert np.array_equal(np.sort(taken), np.arange(N)) and following[0] == N


def test_compare_exchange(atomics) -> None:
    x, total = RNG.integers(-100, 100, N).astype(np.int32), np.zeros(1, np.int32)
    run_kernel(atomics, "by_compare", total, x, threads=N, group=32)
    assert total[0] == x.sum()


def test_threadgroup_atomics(atomics) -> None:
    x, out = RNG.integers(0, 256, 1024).astype(np.uint8), np.zeros(1024, np.uint32)
    run_kernel(atomics, "histogram", x, out, threads=1024, group=256)
    want = [np.bincount(part, minlength=256) for part in x.reshape(4, 256)]
    assert np.array_equal(out.reshape(4, 256), want)
