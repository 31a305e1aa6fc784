"""What a case of the shape table is, how it is run, and how its error is measured.

A case knows how to make its inputs on a device, which launches compute it, and what float64 numpy
says: `prepare(case, device, rng)`. The table is shapes.py; how inputs and expected outputs are made
is in case_*.py. Tests, the checking device and the bench share them all.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .launch import Launch, Span, run, whole

if TYPE_CHECKING:
    from ..mtl.buffer import Buffer
    from ..mtl.device import Device

Array = NDArray[np.float64]
Value = int | float | bool | str | tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """One row of the table. `kernel` is what must run: there is no fallback."""

    kernel: str
    shape: tuple[tuple[str, Value], ...]

    def __str__(self) -> str:
        return self.kernel + "".join(f" {name}={value}" for name, value in self.shape)

    def __getitem__(self, name: str) -> Value:
        return dict(self.shape)[name]


def case(kernel: str, **shape: Value) -> Case:
    return Case(kernel, tuple(shape.items()))


@dataclass
class Prepared:
    """A case with its inputs on a device. |got - expected| <= tolerance * scale is asked."""

    launches: list[Launch]
    output: "Buffer"
    expected: Array
    scale: Array | float
    tolerance: float
    dtype: np.dtype = field(default_factory=lambda: np.dtype(np.float32))

    def result(self) -> NDArray:
        return self.output.numpy(self.dtype, self.expected.shape)

    def error(self) -> float:
        """The worst |got - expected| / scale; NaN where only one of the two is NaN counts 1e9."""
        got = self.result().astype(np.float64)
        same = (got == self.expected) | (np.isnan(got) & np.isnan(self.expected))
        with np.errstate(invalid="ignore"):
            ratio = np.where(same, 0.0, np.abs(got - self.expected) / self.scale)
        return float(np.where(np.isnan(ratio), 1e9, ratio).max())


def prepare(case: Case, device: "Device", rng: np.random.Generator) -> Prepared:
    """Inputs, launches and the expected output of a case."""
    from . import case_attention, case_choice, case_layers, case_matmul  # they build on this module

    modules = (case_matmul, case_layers, case_choice, case_attention)
    families = {kernel: build for module in modules for kernel, build in module.FAMILIES.items()}
    return families[case.kernel](device, rng, case.kernel, **dict(case.shape))


def check(case: Case, device: "Device", seed: int = 0) -> float:
    """Runs a case and returns its error. Raises AssertionError when it is over the tolerance."""
    prepared = prepare(case, device, np.random.default_rng(seed))
    run(device, *prepared.launches)
    error = prepared.error()
    if not error <= prepared.tolerance:
        got, want = prepared.result(), prepared.expected
        bad = np.abs(got - want) / prepared.scale
        at = np.unravel_index(np.nanargmax(np.where(np.isnan(bad), 1e9, bad)), want.shape)
        where = tuple(int(i) for i in at)
        raise AssertionError(
            f"{case}: error {error:.2e}, expected at most {prepared.tolerance:.0e}; "
            f"at {where}: expected {want[at]!r}, found {got[at]!r}"
        )
    return error


def floats(device: "Device", array: NDArray) -> Span:
    """A buffer with the array as float32."""
    return whole(device.from_numpy(np.asarray(array, np.float32)))


def ints(device: "Device", array: NDArray | list[int]) -> Span:
    """A buffer with the array as int32."""
    return whole(device.from_numpy(np.asarray(array, np.int32)))
