"""The checker is checked: broken kernels are caught at the right line, correct ones pass."""

import functools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.soft.kernel_files import Case, cases, run_case
from tinyrvllm.soft.cpu.execute import Dispatch, run
from tinyrvllm.soft.cpu.library import SoftKernel, SoftLibrary, compile_library

HERE = Path(__file__).parent
BROKEN = list(cases(HERE / "broken_kernels"))
CORRECT = list(cases(HERE / "correct_kernels"))
ORDERS_AND_THREADS = [(0, 1), (1, 2), (2, 1), (77, 2)]


@functools.cache
def library(path: Path) -> SoftLibrary:
    return compile_library(path.read_text(), filename=path.name, check=True)


@pytest.fixture(scope="module")
def compiled() -> None:
    """Compiles what the tests need, on all cores."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(library, {case.path for case in BROKEN + CORRECT}))
        list(pool.map(kernel, BROKEN + CORRECT))


def kernel(case: Case) -> SoftKernel:
    return library(case.path).kernel(case.kernel)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("case", BROKEN, ids=str)
def test_broken_kernel_is_caught(case: Case) -> None:
    assert case.bugs, f"{case} names no line with // BUG: kind"
    for order, threads in ORDERS_AND_THREADS:
        reports = run_case(case, kernel(case), order, threads).reports
        found = [(r.kind, r.line) for r in reports]
        for kind, lines in case.bugs.items():
            right = [r for r in reports if r.kind == kind and r.line in lines]
            assert right, f"expected {kind} at {lines} (order {order}, {threads} threads): {found}"
            if kind == "race":
                assert {r.other_line for r in right} <= lines, found


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("case", CORRECT, ids=str)
def test_correct_kernel_passes(case: Case) -> None:
    expected = None
    for order, threads in ORDERS_AND_THREADS:
        outcome = run_case(case, kernel(case), order, threads)
        assert not outcome.reports, "\n".join(map(str, outcome.reports))
        expected = expected or outcome.memory
        assert outcome.memory == expected, f"another result with order {order}, {threads} threads"


def test_messages_name_everything_as_the_source_does() -> None:
    texts = {}
    for name in ("past_the_end", "no_barrier", "inside_a_helper", "last_one_adds_up"):
        case = next(c for c in BROKEN if c.kernel == name)
        texts[name] = str(run_case(case, kernel(case)).reports[-1])
    assert texts["past_the_end"] == (
        "out of bounds: read of 4 bytes: buffer(0) 'a' has 64 elements, 256 bytes; "
        "element 64 (byte 256) is past its end (kernel 'past_the_end')\n"
        "  by thread (31, 0, 0), (63, 0, 0) in the grid, threadgroup (1, 0, 0)\n"
        "    device_bounds.metal:9: out[i] = a[i] + a[i + 1];  // BUG: out-of-bounds"
    )
    assert texts["no_barrier"] == (
        "data race: read of 4 bytes: threadgroup variable 'tile', element 31 (byte 124)"
        " (kernel 'no_barrier')\n"
        "  by thread (32, 0, 0), (32, 0, 0) in the grid, threadgroup (0, 0, 0)\n"
        "    races.metal:9: out[i] = tile[63 - i];  // BUG: race\n"
        "  against the write by thread (31, 0, 0), (31, 0, 0) in the grid, threadgroup (0, 0, 0)\n"
        "    races.metal:8: tile[i] = i;         // BUG: race\n"
        "  no threadgroup_barrier with mem_flags::mem_threadgroup stands between them\n"
        "  (32 times at these lines)"
    )
    called = "called from device_bounds.metal:114: out[i] = from_a_helper(a, i);"
    assert called in texts["inside_a_helper"]
    assert "threadgroups of one dispatch run in any order" in texts["last_one_adds_up"]


def test_lines_of_spliced_files_are_their_own() -> None:
    source = (
        '#line 1 "helpers.h"\n#include <metal_stdlib>\nusing namespace metal;\n'
        "static void put(device float *to, uint i) {\n  to[i] = 1;\n}\n"
        '#line 7 "kernels.metal"\nkernel void fill(device float *to [[buffer(0)]], '
        "uint i [[thread_position_in_grid]]) {\n  put(to, i);\n"
        "  if (i < 2) threadgroup_barrier(mem_flags::mem_device);\n}\n"
    )
    fill = compile_library(source, filename="program_source", check=True).kernel("fill")
    memory = np.zeros(3, np.float32)
    slots = {0: (memory.ctypes.data, memory.nbytes)}
    [overrun] = run([Dispatch(fill, slots, (4, 1, 1), (4, 1, 1))])
    assert (overrun.kind, overrun.file, overrun.line) == ("out-of-bounds", "helpers.h", 4)
    assert "called from kernels.metal:8: put(to, i);" in str(overrun)
    [returned] = run([Dispatch(fill, slots, (3, 1, 1), (3, 1, 1))])
    assert (returned.kind, returned.file, returned.line) == ("early-return", "kernels.metal", 9)


@pytest.mark.long
def test_the_device_passes_its_other_tests_in_checking_mode() -> None:
    parts = ("cpu_[kl]*", "stdlib_*")
    files = [str(path) for part in parts for path in HERE.glob(f"test_{part}.py")]
    assert len(files) >= 6, files
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.soft.in_checking_mode", *files]
    root = HERE.parent.parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
