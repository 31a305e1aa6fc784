"""An Objective-C runtime whose objects do nothing: what is left is this program's own time.

The messages of a step are answered by llabs of the C library. It takes no notice of anything but
its first argument, the receiver, and returns it; the command buffer is the number 4, which is also
the status "completed". So each send costs what cffi and Python cost, and nothing else. Only what a
device is asked while it is set up is answered in Python.
"""

import mmap
import sys
from collections.abc import Callable
from typing import Any

from tinyrvllm.mtl import sends
from tinyrvllm.mtl.api import MTLCommandBufferStatusCompleted, ffi

ENOUGH = 1 << 40  # bytes: no limit stands in the way

ffi.cdef("long long llabs(long long);")


class NullRuntime:
    """See `mtl.objc.Runtime`. Buffers are real memory, zeros until something is written."""

    name = "null"

    def __init__(self) -> None:
        self.unverified: list[str] = []
        # Windows has no global namespace of symbols; its C library is in ucrtbase.
        library = ffi.dlopen("ucrtbase" if sys.platform == "win32" else None)
        self._native = ffi.addressof(library, "llabs")
        self._object = ffi.cast("id", MTLCommandBufferStatusCompleted)
        self._memory: list[tuple[mmap.mmap, Any]] = []
        self._answers: dict[str, Callable[..., Any]] = {
            "UTF8String": lambda _: ffi.new("char[]", b"a device that does nothing"),
            "maxThreadsPerThreadgroup": lambda _: ffi.new("MTLSize *", (1024, 1024, 1024))[0],
            "operatingSystemVersion": lambda _: ffi.new("NSOperatingSystemVersion *", (15, 0, 0))[0],
            "maxThreadgroupMemoryLength": lambda _: 32768,
            "maxBufferLength": lambda _: ENOUGH,
            "recommendedMaxWorkingSetSize": lambda _: ENOUGH,
            "supportsFamily:": lambda _, family: True,
            "maxTotalThreadsPerThreadgroup": lambda _: 1024,
            "threadExecutionWidth": lambda _: 32,
            "staticThreadgroupMemoryLength": lambda _: 0,
            "newBufferWithLength:options:": lambda _, nbytes, options: self._allocate(nbytes),
            "newBufferWithBytesNoCopy:length:options:deallocator:": lambda _, memory, *rest: memory,
        }

    def class_named(self, name: str) -> Any:
        return self._object

    def bind(self, selector: str, returns: str, arguments: tuple[str, ...]) -> Callable[..., Any]:
        if selector in self._answers:
            return self._answers[selector]
        return sends.bind(self._native, ffi.NULL, selector, returns, arguments)

    def push_pool(self) -> Any:
        return None

    def pop_pool(self, pool: Any) -> None:
        pass

    def default_device(self) -> Any:
        return self._object

    def _allocate(self, nbytes: int) -> Any:
        """Memory whose address is the buffer's handle, so that llabs answers `contents`."""
        memory = mmap.mmap(-1, nbytes)
        pointer = ffi.from_buffer(memory)
        self._memory.append((memory, pointer))
        return ffi.cast("id", pointer)
