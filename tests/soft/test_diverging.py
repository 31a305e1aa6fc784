"""Loops and branches whose lanes diverge, against a GPU's rule: they meet where the flow does."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.soft.diverging import FUNCTIONS, Program
from tests.soft.stdlib import HEADER
from tinyrvllm.soft.cpu.execute import Dispatch, run
from tinyrvllm.soft.cpu.library import compile_library

LANES = np.arange(32)
# The kernel's statements: they set `r`, given `i`, the lane.
LOOPS: dict[str, tuple[str, np.ndarray]] = {
    "an event that some skip": (
        "for (uint k = 0; k < 3; k++) { r += simd_sum(1u); if (i >= 8) r += 100 * simd_sum(1u); }",
        np.where(LANES < 8, 96, 96 + 7200),
    ),
    "continue": (
        "for (uint k = 0; k < 3; k++) { r += simd_sum(1u); if (i < 8) continue; r += 100 * simd_sum(1u); }",
        np.where(LANES < 8, 96, 96 + 7200),
    ),
    "other lanes in each round": (
        "for (uint k = 0; k < 3; k++) if ((i + k) % 2) r += simd_sum(1u);",
        np.where(LANES % 2, 32, 16),
    ),
    "an event in the condition": (
        "uint left = i % 4; while (simd_any(left > 0)) if (left > 0) { r += simd_sum(1u); left--; }",
        np.array([0, 24, 40, 48] * 8),
    ),
    "an event in the step": (
        "for (uint k = 0; k < 3; r += simd_sum(1u), k++) { if (i < 8) continue; r += 100 * simd_sum(1u); }",
        np.where(LANES < 8, 96, 96 + 7200),
    ),
    "do": (
        "uint k = 0; do { if (i % 2) r += simd_sum(1u); k++; } while (k < 2 + i % 2);",
        np.where(LANES % 2, 48, 0),
    ),
    "a loop in a loop": (
        "for (uint k = 0; k < 2; k++) for (uint j = 0; j <= i % 2; j++) if (j == k) r += simd_sum(1u);",
        np.where(LANES % 2, 32 + 16, 32),
    ),
    "a function that some pass by": (
        "for (uint k = 0; k < 2; k++) { r += sometimes(i); }",
        np.where(LANES % 2, 2 * 16 * 16, 0),
    ),
    "a constructor of a template type": (
        "for (uint k = 0; k < 3; k++) if ((i + k) % 2) r += made<Sum>(1u);",
        np.where(LANES % 2, 32, 16),
    ),
    "an instance of a template type": (
        "for (uint k = 0; k < 3; k++) r += odd<Sum>(i + k);",
        np.where(LANES % 2, 32, 16),
    ),
    # An operand of one byte must not lie on one of four bytes that still waits.
    "operands of two sizes": (
        "r = i < 4 ? simd_sum(i + 256) : uint(simd_any(i == 9));",
        np.where(LANES < 4, 6 + 4 * 256, 1),
    ),
}
LOOP_FUNCTIONS = """
uint sometimes(uint i) { return i % 2 ? simd_sum(i) : 0; }
struct Sum { uint r; Sum(uint v) { r = simd_sum(v); } };
template <typename T> uint made(uint v) { return T(v).r; }
template <typename T> uint odd(uint i) { if (i % 2) { T t(1); return t.r; } return 0; }
"""


@pytest.mark.parametrize("check", [False, True], ids=["normal", "checking"])
def test_lanes_meet_in_the_same_round(check: bool) -> None:
    kernels = "".join(
        f"kernel void k{n}(device uint *out [[buffer(0)]], uint i [[thread_index_in_simdgroup]],\n"
        f"uint at [[thread_position_in_grid]]) {{ uint r = 0; {code} out[at] = r; }}\n"
        for n, (code, _) in enumerate(LOOPS.values())
    )
    found = _run(HEADER + LOOP_FUNCTIONS + kernels, [f"k{n}" for n in range(len(LOOPS))], check)
    for (name, (_, expected)), values in zip(LOOPS.items(), found, strict=True):
        np.testing.assert_array_equal(values, expected, name)


def test_random_programs() -> None:
    _compare(range(16), False)


@pytest.mark.long
@pytest.mark.parametrize("check", [False, True], ids=["normal", "checking"])
@pytest.mark.parametrize("first", range(100, 500, 50))
def test_more_random_programs(first: int, check: bool) -> None:
    _compare(range(first, first + 50), check)


def _compare(seeds: range, check: bool) -> None:
    programs = {f"program{seed}": Program(seed) for seed in seeds}
    source = HEADER + FUNCTIONS + "".join(p.source(name) for name, p in programs.items())
    for (name, program), found in zip(
        programs.items(), _run(source, list(programs), check), strict=True
    ):
        np.testing.assert_array_equal(found, program.run(), f"seed {name}:\n{program.source(name)}")


def _run(source: str, kernels: list[str], check: bool) -> list[np.ndarray]:
    """What each kernel wrote: two simdgroups of a threadgroup, which must agree."""
    library = compile_library(source, filename="diverging.metal", check=check)
    results = []
    with ThreadPoolExecutor(2) as pool:
        for kernel in pool.map(library.kernel, kernels):
            out = np.zeros(64, np.uint32)
            bound = {0: (out.ctypes.data, out.nbytes)}
            reports = run([Dispatch(kernel, bound, (64, 1, 1), (64, 1, 1))])
            assert not [r for r in reports if not r.warning], "\n".join(map(str, reports))
            np.testing.assert_array_equal(out[:32], out[32:])
            results.append(out[:32])
    return results
