"""Command lists on OS threads: order, repetition, many short lists, callers in several threads."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tinyrvllm.soft.cpu.execute import Dispatch, run
from tinyrvllm.soft.cpu.library import compile_library

from .launch import library, u32
from .stdlib import HEADER

f32 = np.float32


def add(a: np.ndarray, b: np.ndarray, out: np.ndarray, count: np.ndarray, group: int) -> Dispatch:
    bound = {i: (x.ctypes.data, x.nbytes) for i, x in enumerate((a, b, out, count))}
    kernel = library("elementwise").kernel("add")
    return Dispatch(kernel, bound, (len(a), 1, 1), (group, 1, 1))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_dispatch_begins_when_the_one_before_is_over(threads: int) -> None:
    """Each dispatch doubles x from one array into the other, in many threadgroups."""
    n = 4096
    x, y, count = np.ones(n, f32), np.zeros(n, f32), u32(n)
    there, back = add(x, x, y, count, 32), add(y, y, x, count, 64)
    run([there, back] * 20, threads)  # a dispatch may stand in a list many times
    np.testing.assert_array_equal(x, f32(2.0**40))


@pytest.mark.parametrize("threads", [2, 4])
def test_many_short_lists(threads: int) -> None:
    x, one = np.zeros(64, f32), np.ones(64, f32)
    step = add(x, one, x, u32(64), 16)
    for _ in range(3000):
        run([step], threads)
    np.testing.assert_array_equal(x, 3000)


MEET = """
kernel void meet(device atomic_uint *here [[buffer(0)]], device uint *met [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(here, 1, memory_order_relaxed);
  ulong tries = 1ul << 34;  // a minute: then nobody comes
  while (tries && atomic_load_explicit(here, memory_order_relaxed) < 2) tries--;
  met[i] = tries > 0;
}
"""


UNEVEN = """
kernel void uneven(device uint *out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  uint x = i + 1;
  for (uint k = 0; k < (i == 0 ? 3000000u : 1u); k++) x = x * 1664525 + 1013904223;
  out[i] = x;
}
kernel void after(device const uint *x [[buffer(0)]], device uint *out [[buffer(1)]],
                  uint i [[thread_position_in_grid]]) { out[i] = x[1 - i]; }
"""


def test_who_is_done_first_waits_for_a_slow_threadgroup() -> None:
    kernels = compile_library(HEADER + UNEVEN, filename="uneven.metal")
    results = set()
    for _ in range(10):
        x, out = u32(0, 0), u32(0, 0)
        slots = {i: (a.ctypes.data, a.nbytes) for i, a in enumerate((x, out))}
        shape = (2, 1, 1), (1, 1, 1)
        run([Dispatch(kernels.kernel(name), slots, *shape) for name in ("uneven", "after")], 2)
        assert x[0] and out.tolist() == x.tolist()[::-1]
        results.add(tuple(x))
    assert len(results) == 1


def test_threads_share_a_dispatch() -> None:
    """Two threadgroups that wait for each other: each list needs its worker, asleep or not."""
    kernel = compile_library(HEADER + MEET, filename="meet.metal").kernel("meet")
    for _ in range(20):
        here, met = u32(0), u32(0, 0)
        bound = {i: (x.ctypes.data, x.nbytes) for i, x in enumerate((here, met))}
        run([Dispatch(kernel, bound, (2, 1, 1), (1, 1, 1))], 2)
        assert met.tolist() == [1, 1]


def test_callers_in_several_threads() -> None:
    results = [np.zeros(1000, f32) for _ in range(4)]

    def work(x: np.ndarray) -> None:
        one, count = np.ones(1000, f32), u32(1000)
        step = add(x, one, x, count, 32)
        for _ in range(200):
            run([step], 2)

    callers = [threading.Thread(target=work, args=(x,)) for x in results]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    for x in results:
        np.testing.assert_array_equal(x, 200)


def test_an_empty_list_and_a_kernel_that_is_bound_too_little() -> None:
    assert run([]) == []
    with pytest.raises(ValueError, match=r"reads buffer\(0\) \('a'\), and nothing is bound there"):
        Dispatch(library("elementwise").kernel("add"), {}, (1, 1, 1), (1, 1, 1))


@pytest.mark.parametrize("end", ["", "os._exit(0)", "raise SystemExit(0)"])
def test_a_process_with_workers_ends(end: str) -> None:
    code = (
        "import os, numpy as np\n"
        "from tests.soft.test_cpu_workers import add, run, u32\n"
        "x = np.ones(4096, np.float32)\n"
        f"run([add(x, x, x, u32(4096), 32)], 3)\n{end}"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, timeout=60, check=False)
    assert done.returncode == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_has_workers_of_its_own() -> None:
    code = (
        "import os, numpy as np\n"
        "from tests.soft.test_cpu_workers import add, run, u32\n"
        "x = np.ones(4096, np.float32)\n"
        "run([add(x, x, x, u32(4096), 32)], 2)\n"
        "from tinyrvllm.soft.cpu.workers import pool\n"
        "inherited = pool(False)\n"
        "child = os.fork()\n"
        "if not child: inherited._engine = None  # the child must not call into it, not even at exit\n"
        "run([add(x, x, x, u32(4096), 32)], 2)\n"
        "assert (x == 4).all()\n"
        "if child: raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        # From 3.12 on Python warns of forking with threads: rightly, but we know.
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
        cwd=root, timeout=300, check=False, capture_output=True,
    )
    assert (done.returncode, done.stderr) == (0, b"")
