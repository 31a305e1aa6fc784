"""What executes kernels behind the double, and where buffers live."""

import mmap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .signatures import ffi

Size = tuple[int, int, int]
Range = tuple[int, int]  # addresses, the end exclusive


class Unavailable(Exception):
    """A device that this machine cannot have; the text says why and what to do."""


class CompileError(Exception):
    """A source that does not compile; the text is the compiler's."""


@dataclass
class Memory:
    """Bytes that the engine can reach; `owner` keeps them."""

    address: int
    nbytes: int
    owner: Any = None
    shown: Callable[[], None] | None = None  # to be told when the program asks for the contents


@dataclass
class Run:
    """One dispatch, ready for an engine."""

    kernel: Any  # what Engine.kernel returned
    name: str
    buffers: dict[int, tuple[int, int]]  # slot -> (address, bytes)
    grid: Size  # threads
    group: Size  # threads per threadgroup
    threadgroup_memory: dict[int, int] = field(default_factory=dict)  # index -> bytes
    resident: list[Range] = field(default_factory=list)  # what addresses in its buffers may reach
    # After the run: the bytes really read and written, sorted; None where the engine cannot tell.
    touched: tuple[list[Range], list[Range]] | None = None


@dataclass
class Recorded:
    """Dispatches of an indirect command buffer; those of one phase may overlap."""

    phases: list[list[Run]]
    prepared: Any = None  # what the engine made of them


class Engine(Protocol):
    """Compiles MSL and runs dispatches: soft/cpu on this CPU, soft/cuda on an NVIDIA GPU.

    An engine that runs beside the CPU has `submit` and `finish` as well (soft/cuda/engine.py), and
    `wrap` where it must know of the program's own memory; one with `replays` takes `Recorded`.
    """

    description: str  # for the device's name

    def allocate(self, nbytes: int) -> Memory:
        """Zeros, starting on a page. Raises MemoryError or OSError when there is no room."""

    def compile(self, source: str) -> Any:
        """A library with `functions: dict[str, KernelInfo]` (soft/cpu/library.py).

        Raises CompileError.
        """

    def kernel(self, library: Any, name: str, constants: Mapping[int, Any]) -> Any:
        """One function specialised by its constants, with `static_threadgroup_bytes`.

        Raises CompileError.
        """

    def run(self, runs: Sequence[Run]) -> list[str]:
        """Runs dispatches in order and returns what went wrong, a text for each fault."""


def pages(nbytes: int) -> Memory:
    """Zeroed host memory in whole pages, freed with the returned object."""
    length = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    if hasattr(mmap, "MAP_PRIVATE"):  # private memory may get huge pages; Windows has no flags
        memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    else:
        memory = mmap.mmap(-1, length)
    view = ffi.from_buffer(memory)
    return Memory(int(ffi.cast("uintptr_t", view)), nbytes, view)


class CpuEngine:
    """The host CPU, through tinyrvllm.soft.cpu."""

    def __init__(self, check: bool = False) -> None:
        """Raises Unavailable when there is no compiler."""
        from tinyrvllm.soft.cpu import compiler
        from tinyrvllm.soft.msl import MSLError

        try:
            version = compiler.find().version
        except MSLError as error:
            raise Unavailable(str(error)) from None
        self.check = check
        self.description = f"this CPU through {version}{', checking' if check else ''}"

    def allocate(self, nbytes: int) -> Memory:
        return pages(nbytes)

    def compile(self, source: str) -> Any:
        from tinyrvllm.soft.cpu.library import compile_library
        from tinyrvllm.soft.msl import MSLError

        try:
            return compile_library(source, filename="program_source", check=self.check)
        except (MSLError, OSError) as error:  # a full disk
            raise CompileError(str(error)) from error

    def kernel(self, library: Any, name: str, constants: Mapping[int, Any]) -> Any:
        from tinyrvllm.soft.cpu import workers
        from tinyrvllm.soft.msl import MSLError

        workers.pool(self.check)  # starts now, so that the first run measures only itself
        try:
            return library.kernel(name, dict(constants))
        except (MSLError, OSError) as error:
            raise CompileError(str(error)) from error

    def run(self, runs: Sequence[Run]) -> list[str]:
        from tinyrvllm.soft.cpu.execute import Dispatch, run

        dispatches = [
            Dispatch(
                r.kernel, r.buffers, r.grid, r.group, r.threadgroup_memory, resident=r.resident
            )
            for r in runs
        ]
        reports = run(dispatches)
        for dispatched, observed in zip(runs, dispatches, strict=True):
            if observed.touched is not None:
                touched = observed.touched()
                dispatched.touched = (touched.reads, touched.writes)
        for report in reports:
            if report.warning:
                warnings.warn(str(report), stacklevel=2)
        return [str(report) for report in reports if not report.warning]
