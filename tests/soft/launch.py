"""Runs kernels of tests/soft/kernels on numpy arrays."""

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tinyrvllm.soft.cpu.execute import Dispatch, run
from tinyrvllm.soft.cpu.library import SoftLibrary, compile_library

KERNELS = Path(__file__).parent / "kernels"


@functools.cache
def library(stem: str, check: bool = False) -> SoftLibrary:
    path = KERNELS / f"{stem}.metal"
    return compile_library(path.read_text(), filename=path.name, check=check, include=[KERNELS])


def launch(
    stem: str,
    kernel: str,
    *buffers: np.ndarray,
    grid: tuple[int, ...],
    group: tuple[int, ...],
    memory: dict[int, int] | None = None,
    constants: dict[int, int | float | bool] | None = None,
    threads: int = 1,
    resident: Sequence[np.ndarray] = (),
) -> None:
    """Binds `buffers` to slots 0, 1, ... ; `grid` counts threads.

    `resident`: arrays whose addresses stand in a buffer.
    """
    bound = {i: (a.ctypes.data, a.nbytes) for i, a in enumerate(buffers)}
    full = (tuple(size) + (1, 1, 1) for size in (grid, group))
    (gx, gy, gz, *_), (tx, ty, tz, *_) = full
    made = library(stem).kernel(kernel, constants)
    reached = [(a.ctypes.data, a.ctypes.data + a.nbytes) for a in resident]
    dispatch = Dispatch(made, bound, (gx, gy, gz), (tx, ty, tz), memory, resident=reached)
    run([dispatch], threads)


def u32(*values: int) -> np.ndarray:
    return np.array(values, np.uint32)
