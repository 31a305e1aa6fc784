"""The checker is checked: broken kernels are caught at the right line, correct ones pass."""

import functools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.soft.kernel_files import Case, cases, run_case
from tinyrvllm.soft.cpu.library import SoftKernel, SoftLibrary, compile_library

HERE = Path(__file__).parent
BROKEN = list(cases(HERE / "broken_kernels"))
CORRECT = list(cases(HERE / "correct_kernels"))
ORDERS_AND_THREADS = [(0, 1), (1, 2), (2, 1), (77, 2)]


@functools.cache
def library(path: Path) -> SoftLibrary:
    return compile_library(path.read_text(), filename=path.name, check=True)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Compiles what the tests need, on all cores."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(library, {case.path for case in BROKEN + CORRECT}))
        list(pool.map(kernel, BROKEN + CORRECT))


def kernel(case: Case) -> SoftKernel:
    return library(case.path).kernel(case.kernel)


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


@pytest.mark.parametrize("case", CORRECT, ids=str)
def test_correct_kernel_passes(case: Case) -> None:
    expected = None
    for order, threads in ORDERS_AND_THREADS:
        outcome = run_case(case, kernel(case), order, threads)
        assert not outcome.reports, "\n".join(map(str, outcome.reports))
        expected = expected or outcome.memory
        assert outcome.memory == expected, f"another result with order {order}, {threads} threads"
