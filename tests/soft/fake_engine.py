"""An engine whose kernels are Python functions: tests of the double need no compiler.

Its "language": a source is a list of kernel names, and `error` in it does not compile.
"""

import ctypes
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tinyrvllm.soft.objc_double.engine import CompileError, Memory, Run, pages


@dataclass
class Param:
    name: str
    kind: str
    index: int
    access: str = "read"
    type: str = "device float*"
    function_constant: str | None = None
    holds_addresses: bool = False


@dataclass
class FunctionConstant:
    name: str
    type: str
    required: bool = True


@dataclass
class KernelInfo:
    name: str
    params: tuple[Param, ...]
    max_total_threads: int | None = None
    function_constants: dict[int, FunctionConstant] = field(default_factory=dict)


def view(run: Run, slot: int, dtype: str) -> np.ndarray:
    """The bytes bound at a slot, as an array."""
    address, nbytes = run.buffers[slot]
    raw = (ctypes.c_char * nbytes).from_address(address)
    return np.frombuffer(raw, dtype, nbytes // np.dtype(dtype).itemsize)


def vector_add(run: Run, constants: Mapping[int, Any]) -> None:
    n = int(view(run, 3, "u4")[0])
    view(run, 2, "f4")[:n] = view(run, 0, "f4")[:n] + view(run, 1, "f4")[:n]


def scale(run: Run, constants: Mapping[int, Any]) -> None:
    view(run, 1, "f4")[:] = view(run, 0, "f4")[: len(view(run, 1, "f4"))] * constants[0]


def geometry(run: Run, constants: Mapping[int, Any]) -> None:
    view(run, 0, "u4")[:6] = (*run.grid, *run.group)


def tile(run: Run, constants: Mapping[int, Any]) -> None:
    view(run, 0, "u4")[0] = run.threadgroup_memory[0]


def fault(run: Run, constants: Mapping[int, Any]) -> None:
    raise ZeroDivisionError("kernel 'fault': thread (7, 0, 0) read past buffer(0)")


BUFFERS = "buffer"
KERNELS = {
    "vector_add": (
        vector_add,
        KernelInfo(
            "vector_add",
            (
                Param("a", BUFFERS, 0),
                Param("b", BUFFERS, 1),
                Param("c", BUFFERS, 2, "write"),
                Param("n", BUFFERS, 3, type="constant uint&"),
            ),
        ),
    ),
    "scale": (
        scale,
        KernelInfo(
            "scale",
            (Param("x", BUFFERS, 0), Param("y", BUFFERS, 1, "read_write")),
            function_constants={0: FunctionConstant("FACTOR", "float")},
        ),
    ),
    "geometry": (geometry, KernelInfo("geometry", (Param("out", BUFFERS, 0, "write"),), 64)),
    "tile": (
        tile,
        KernelInfo(
            "tile",
            (Param("out", BUFFERS, 0, "write"), Param("shared", "threadgroup", 0, "read_write")),
        ),
    ),
    "fault": (fault, KernelInfo("fault", ())),
}
SOURCE = "kernel void " + "(); kernel void ".join(KERNELS) + "();"


@dataclass
class FakeLibrary:
    functions: dict[str, KernelInfo]


@dataclass
class FakeKernel:
    function: Callable[[Run, Mapping[int, Any]], None]
    constants: Mapping[int, Any]
    static_threadgroup_bytes: int


class FakeEngine:
    """See `tinyrvllm.soft.objc_double.engine.Engine`."""

    description = "Python"

    def allocate(self, nbytes: int) -> Memory:
        return pages(nbytes)

    def compile(self, source: str) -> FakeLibrary:
        names = re.findall(r"kernel void (\w+)\(", source)
        if not names:
            raise CompileError("program_source:1:1: error: no kernel here")
        return FakeLibrary({name: KERNELS[name][1] for name in names})

    def kernel(self, library: FakeLibrary, name: str, constants: Mapping[int, Any]) -> Any:
        return FakeKernel(KERNELS[name][0], dict(constants), 1024 if name == "tile" else 0)

    def run(self, runs: Sequence[Run]) -> list[str]:
        faults = []
        for run in runs:
            try:
                run.kernel.function(run, run.kernel.constants)
            except ZeroDivisionError as error:
                faults.append(str(error))
        return faults


def scarce(engine: Any, when: int) -> Any:
    """The engine, which counts its allocations and has no memory for number `when`."""
    allocate = engine.allocate
    engine.count = 0

    def fails_once(nbytes: int) -> Memory:
        engine.count += 1
        if engine.count == when:
            raise MemoryError
        return allocate(nbytes)

    engine.allocate = fails_once
    return engine
