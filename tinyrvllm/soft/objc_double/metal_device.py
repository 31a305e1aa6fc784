"""MTLDevice and what it makes: buffers, libraries, functions, pipelines."""

import mmap
import warnings
from dataclasses import dataclass
from typing import Any, cast

from .engine import CompileError, Engine, Memory
from .foundation import NSString, fail, warn
from .languages import in_language
from .runtime import DoubleRuntime, ObjCObject, message
from .signatures import ObjCError, ffi

STORAGE_SHARED, STORAGE_PRIVATE = 0, 2


@dataclass
class Machine:
    """The Apple GPU whose limits the double keeps: by default an M3 or M4 with 16 GB."""

    os_version: tuple[int, int] = (15, 0)
    family: int = 1009  # MTLGPUFamilyApple9
    # A real pipeline may allow less than the device, when its kernel needs many registers; a test
    # that wants to see that lowers it.
    max_pipeline_threads: int = 1024
    max_threadgroup_memory: int = 32768
    # the next two as such a machine reports them
    max_buffer_length: int = 9_534_832_640
    working_set: int = 12_713_115_648


class SoftRuntime(DoubleRuntime):
    """The double with Metal in it: a machine, an engine, and whether the checks are on."""

    def __init__(
        self,
        name: str,
        classes: dict[str, type[ObjCObject]],
        engine: Engine,
        machine: Machine | None = None,
        check: bool = False,
    ) -> None:
        super().__init__(name, classes)
        self.engine = engine
        self.machine = machine or Machine()
        self.check = check
        self.os_version = self.machine.os_version


class SoftObject(ObjCObject):
    """An object of Metal: its runtime has a machine and an engine."""

    @property
    def soft(self) -> SoftRuntime:
        return cast(SoftRuntime, self.runtime)

    def new_object(self, class_name: str, *arguments: Any) -> Any:
        """An object of one of the double's classes, owned by the receiver of the message."""
        return self.runtime.classes[class_name](self.runtime, *arguments)


class MTLDevice(SoftObject):
    """Where everything comes from."""

    @message("name")
    def name(self) -> ObjCObject:
        family = self.soft.machine.family - 1000
        engine = self.soft.engine
        kind = getattr(engine, "kind", "Software Metal")
        text = f"{kind} on {engine.description} (limits of Apple{family})"
        return NSString(self.runtime, text).autorelease()

    @message("maxThreadsPerThreadgroup")
    def max_threads(self) -> tuple[int, int, int]:
        return (1024, 1024, 1024)

    @message("maxThreadgroupMemoryLength")
    def max_threadgroup_memory(self) -> int:
        return self.soft.machine.max_threadgroup_memory

    @message("maxBufferLength")
    def max_buffer_length(self) -> int:
        return self.soft.machine.max_buffer_length

    @message("recommendedMaxWorkingSetSize")
    def working_set(self) -> int:
        return self.soft.machine.working_set

    @message("supportsFamily:")
    def supports(self, family: int) -> bool:
        return 1001 <= family <= self.soft.machine.family or family == 5001  # Apple1..n, Metal3

    @message("newCommandQueue")
    def new_queue(self) -> ObjCObject:
        return self.new_object("MTLCommandQueue")

    @message("newBufferWithLength:options:")
    def new_buffer(self, length: int, options: int) -> ObjCObject | None:
        if not 0 < length <= self.soft.machine.max_buffer_length:
            return None
        try:
            memory = self.soft.engine.allocate(length)
        except (MemoryError, OSError):
            return None
        return MTLBuffer(self.runtime, memory, options)

    @message("newBufferWithBytesNoCopy:length:options:deallocator:")
    def new_wrapped(
        self, pointer: Any, length: int, options: int, deallocator: Any
    ) -> ObjCObject | None:
        address = int(ffi.cast("uintptr_t", pointer))
        if deallocator:
            raise ObjCError("a deallocator block would be called from a foreign thread; pass nil")
        if address % mmap.PAGESIZE or length % mmap.PAGESIZE:
            raise ObjCError(
                f"newBufferWithBytesNoCopy: address {address:#x} and length {length} must be "
                "multiples of the page size"
            )
        if not 0 < length <= self.soft.machine.max_buffer_length:
            return None
        wrap = getattr(self.soft.engine, "wrap", Memory)
        return MTLBuffer(self.runtime, wrap(address, length), options)

    @message("newLibraryWithSource:options:error:")
    def new_library(self, source: Any, options: Any, error: Any) -> ObjCObject | None:
        text, chosen = self.runtime.object(source).text, self.runtime.object(options)
        language = chosen.language if chosen is not None else None
        try:
            text = in_language(text, language, self.soft.os_version)
            compiled = self.soft.engine.compile(text)
        except CompileError as failure:
            fail(self.runtime, error, str(failure))
            return None
        warn(self.runtime, error)
        return self.new_object("MTLLibrary", compiled, chosen)

    @message("newComputePipelineStateWithDescriptor:options:reflection:error:")
    def new_described_pipeline(
        self, descriptor: Any, options: int, reflection: Any, error: Any
    ) -> ObjCObject | None:
        if options or reflection:
            raise ObjCError("reflection is not supported: pass MTLPipelineOptionNone and nil")
        described = self.runtime.object(descriptor)
        return self._pipeline(described.function, described.indirect, error)

    def _pipeline(self, function: Any, indirect: bool, error: Any) -> ObjCObject | None:
        if function is None:
            raise ObjCError("a pipeline needs a function: the descriptor has none")
        limit = self.soft.machine.max_threadgroup_memory
        try:
            kernel = self.soft.engine.kernel(
                function.library.compiled, function.info.name, function.constants
            )
            if kernel.static_threadgroup_bytes > limit:
                raise CompileError(
                    f"Threadgroup memory size ({kernel.static_threadgroup_bytes}) exceeds the "
                    f"maximum threadgroup memory allowed ({limit})"
                )
        except CompileError as failure:
            fail(self.runtime, error, str(failure))
            return None
        warn(self.runtime, error)
        return self.new_object("MTLComputePipelineState", function, kernel, indirect)

    @message("newIndirectCommandBufferWithDescriptor:maxCommandCount:options:")
    def new_indirect(self, descriptor: Any, count: int, options: int) -> ObjCObject:
        described = self.runtime.object(descriptor)
        return self.new_object("MTLIndirectCommandBuffer", described, count)

    @message("newResidencySetWithDescriptor:error:")
    def new_residency_set(self, descriptor: Any, error: Any) -> ObjCObject:
        return self.new_object("MTLResidencySet")

    def dealloc(self) -> None:
        found = [*self.runtime.leaks(), *self.runtime.faults] if self.soft.check else []
        if found:
            warnings.warn("when the device was released: " + "; ".join(found), stacklevel=2)


class MTLBuffer(SoftObject):
    """Memory for kernels."""

    owners = ("MTLBuffer", "MTLResource")

    def __init__(self, runtime: DoubleRuntime, memory: Memory, options: int) -> None:
        super().__init__(runtime)
        self.address, self.nbytes, self.memory = memory.address, memory.nbytes, memory
        self.users: set[ObjCObject] = set()  # unfinished command buffers that refer to it
        self.storage = options >> 4 & 15
        if self.storage not in (STORAGE_SHARED, STORAGE_PRIVATE):
            raise ObjCError(f"storage mode {self.storage} does not exist on Apple silicon")

    def __str__(self) -> str:
        return f"{super().__str__()} ({self.nbytes} bytes)"

    @message("length")
    def length(self) -> int:
        return self.nbytes

    @message("gpuAddress")
    def gpu_address(self) -> int:
        return self.address

    @message("contents")
    def contents(self) -> Any:
        if self.storage == STORAGE_PRIVATE:
            return None
        if self.memory.shown is not None:
            self.memory.shown()
        return ffi.cast("void *", self.address)

    @message("setLabel:")
    def set_label(self, label: Any) -> None:
        self.label = self.runtime.object(label).text

    def dealloc(self) -> None:
        if self.users:
            user = next(iter(self.users))
            raise ObjCError(
                f"{self} was freed while {user} may still use it: wait for the command buffer "
                "first, or make it one that retains its references"
            )
