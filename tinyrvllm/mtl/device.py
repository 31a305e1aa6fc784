"""A Metal device: where buffers, libraries and command buffers come from."""

import mmap
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .api import MetalError, MTLGPUFamilies, declare
from .buffer import Buffer
from .command import Commands
from .library import SHADERS, Library, splice
from .objc import ObjC, Owned, Runtime, runtime
from .profile import Profile, Timing

declare(
    "MTLDevice name maxThreadsPerThreadgroup maxThreadgroupMemoryLength maxBufferLength",
    "MTLDevice recommendedMaxWorkingSetSize supportsFamily: newCommandQueue",
    "NSProcessInfo processInfo operatingSystemVersion",
)


@dataclass(frozen=True)
class Limits:
    """What a device can do, as it says itself. Sizes in bytes."""

    max_threads_per_threadgroup: tuple[int, int, int]
    max_threadgroup_memory: int
    max_buffer_length: int
    recommended_working_set: int
    families: tuple[str, ...]  # "Apple7" is M1, "Apple8" M2, "Apple9" M3 and M4
    os_version: tuple[int, int]  # of macOS: decides what may be sent


def open_device(name: str) -> "Device":
    """Opens "metal", "soft", "soft:check" or "cuda".

    Raises MetalError, which says why, when this machine cannot have that device.
    """
    return Device(runtime(name))


class Device(Owned):
    """An MTLDevice and its command queue. Close it, or use it in a `with` block."""

    def __init__(self, runtime: Runtime) -> None:
        self._parts = ExitStack()  # what is closed with it
        super().__init__(ObjC(runtime), runtime.default_device())
        objc, send, handle = self.objc, self.objc.send, self.handle
        self.queue = self._parts.enter_context(Owned(objc, send.newCommandQueue(handle), "queue"))
        self._libraries: dict[str | tuple[str, str], Library] = {}
        self.buffers_made = 0
        self.profile = Profile() if os.environ.get("TINYRVLLM_METAL_PROFILE") else None
        self.timing = Timing() if os.environ.get("TINYRVLLM_TIMING") else None
        for report in (self.timing, self.profile):
            if report is not None:
                self._parts.callback(report.print)
        with objc.pool():
            self.name = self.label = objc.text(send.name(handle))
            info = send.processInfo(runtime.class_named("NSProcessInfo"))
            system = send.operatingSystemVersion(info)
        threads = send.maxThreadsPerThreadgroup(handle)
        families = (name for name, n in MTLGPUFamilies.items() if send.supportsFamily_(handle, n))
        self.limits = Limits(
            max_threads_per_threadgroup=(threads.width, threads.height, threads.depth),
            max_threadgroup_memory=send.maxThreadgroupMemoryLength(handle),
            max_buffer_length=send.maxBufferLength(handle),
            recommended_working_set=send.recommendedMaxWorkingSetSize(handle),
            families=tuple(families),
            os_version=(system.major, system.minor),
        )

    def buffer(self, nbytes: int, label: str = "") -> Buffer:
        """`nbytes` of zeros."""
        return Buffer(self, nbytes, label)

    def from_numpy(self, array: NDArray, label: str = "") -> Buffer:
        """A copy of an array, C order."""
        buffer = Buffer(self, array.nbytes, label)
        buffer.numpy(array.dtype, array.shape)[...] = array
        return buffer

    def wrap(self, memory: mmap.mmap | NDArray, label: str = "") -> Buffer:
        """The memory itself, with no copy: it must start on a page, as a memory map does.

        The GPU sees it up to the end of its last page. It is kept alive as long as the buffer.
        """
        array = np.frombuffer(memory, np.uint8) if isinstance(memory, mmap.mmap) else memory
        if not array.flags.c_contiguous or array.ctypes.data % mmap.PAGESIZE:
            raise MetalError(
                f"wrap {label!r}: expected contiguous memory that starts on a page of "
                f"{mmap.PAGESIZE} bytes, found address {array.ctypes.data:#x}; memory maps do, "
                "other arrays need from_numpy, which copies"
            )
        return Buffer(self, array.nbytes, label, wrapped=array)

    def library(self, shader: str | Path) -> Library:
        """The library of a shader: the stem of a file in tinyrvllm/shaders, or a path.

        Compiled once for each device. Raises MetalError with the compiler's diagnostics.
        """
        if (key := str(shader)) not in self._libraries:
            path = Path(shader) if key.endswith(".metal") else SHADERS / f"{shader}.metal"
            self._libraries[key] = self._parts.enter_context(Library(self, splice(path), path.name))
        return self._libraries[key]

    def library_from_source(self, source: str, name: str = "program_source") -> Library:
        """The library of a text with no #include of its own files; diagnostics call it `name`."""
        if (key := (name, source)) not in self._libraries:
            self._libraries[key] = self._parts.enter_context(Library(self, source, name))
        return self._libraries[key]

    def commands(self, label: str = "") -> Commands:
        """A new command buffer; see command.py."""
        return Commands(self, label)

    def close(self) -> None:
        """Releases libraries, queue and device, and prints profile and timing if asked for."""
        if not self.closed:  # or Ctrl-C came before it had parts
            self._parts.close()
        super().close()
