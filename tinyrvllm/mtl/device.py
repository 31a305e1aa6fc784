"""A Metal device: where buffers, libraries and command buffers come from."""

import mmap
import os
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from . import profile
from .api import MetalError, MTLGPUFamilies, declare
from .buffer import Buffer
from .command import MESSAGES as COMMAND_MESSAGES
from .command import Commands
from .library import SHADERS, Library, splice
from .objc import ObjC, Owned, Runtime, runtime

MESSAGES = declare(
    name="MTLDevice name",
    max_threads="MTLDevice maxThreadsPerThreadgroup",
    max_threadgroup_memory="MTLDevice maxThreadgroupMemoryLength",
    max_buffer_length="MTLDevice maxBufferLength",
    working_set="MTLDevice recommendedMaxWorkingSetSize",
    supports_family="MTLDevice supportsFamily:",
    new_queue="MTLDevice newCommandQueue",
)


@dataclass(frozen=True)
class Limits:
    """What a device can do, as it says itself. Sizes in bytes."""

    max_threads_per_threadgroup: tuple[int, int, int]
    max_threadgroup_memory: int
    max_buffer_length: int
    recommended_working_set: int
    families: tuple[str, ...]  # "Apple7" is M1, "Apple8" M2, "Apple9" M3 and M4
    os_version: tuple[int, int]  # of macOS


def open_device(name: str) -> "Device":
    """Opens "metal", "soft", "soft:check" or "cuda".

    Raises MetalError, which says why, when this machine cannot have that device.
    """
    return Device(runtime(name))


class Device(Owned):
    """An MTLDevice and its command queue. Close it, or use it in a `with` block."""

    def __init__(self, runtime: Runtime) -> None:
        self._libraries: dict[str | tuple[str, str], Library] = {}
        self.profile = profile.Profile() if os.environ.get("TINYRVLLM_METAL_PROFILE") else None
        self.timing = profile.Timing() if os.environ.get("TINYRVLLM_TIMING") else None
        super().__init__(ObjC(runtime), runtime.default_device())
        send = self.objc.messages(MESSAGES)
        self.messages = self.objc.messages(COMMAND_MESSAGES)  # bound once: commands are made often
        self.lock = threading.Lock()  # for what threads share: who is using which buffer
        self.buffers_made = 0
        self.queue = Owned(self.objc, send.new_queue(self.handle))
        with self.objc.pool():
            self.name = self.label = self.objc.text(send.name(self.handle))
        threads = send.max_threads(self.handle)
        self.limits = Limits(
            max_threads_per_threadgroup=(threads.width, threads.height, threads.depth),
            max_threadgroup_memory=send.max_threadgroup_memory(self.handle),
            max_buffer_length=send.max_buffer_length(self.handle),
            recommended_working_set=send.working_set(self.handle),
            families=tuple(
                name
                for name, family in MTLGPUFamilies.items()
                if send.supports_family(self.handle, family)
            ),
            os_version=self.objc.os_version,
        )

    # ---- memory

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

    # ---- programs

    def library(self, shader: str | Path) -> Library:
        """The library of a shader: the stem of a file in tinyrvllm/shaders, or a path.

        Compiled once for each device. Raises MetalError with the compiler's diagnostics.
        """
        key = str(shader)
        if key not in self._libraries:
            path = Path(shader) if key.endswith(".metal") else SHADERS / f"{shader}.metal"
            self._libraries[key] = Library(self, splice(path), path.name)
        return self._libraries[key]

    def library_from_source(self, source: str, name: str = "program_source") -> Library:
        """The library of a text with no #include of its own files. Cached like `library`.

        name: what diagnostics call the text.
        """
        key = (name, source)
        if key not in self._libraries:
            self._libraries[key] = Library(self, source, name)
        return self._libraries[key]

    # ---- work

    def commands(self, label: str = "") -> Commands:
        """A new command buffer; see command.py."""
        return Commands(self, label)

    def close(self) -> None:
        """Releases libraries, queue and device, and prints profile and timing if asked for."""
        if self._handle is None:
            return
        for library in self._libraries.values():
            library.close()
        self._libraries.clear()
        if hasattr(self, "queue"):  # Ctrl-C may come before there is one
            self.queue.close()
        for report in (self.profile, self.timing):
            if report is not None:
                report.print()
        super().close()
