"""MTLCommandQueue, MTLCommandBuffer, MTLComputeCommandEncoder: recording, and running late.

Work runs when the program waits, never before: a program that looks too early sees old bytes here
every time, and not only when it is unlucky.
"""

import threading
import time
from dataclasses import dataclass, field
from typing import Any

from .engine import Memory, Run, Size
from .foundation import NSError
from .hazards import Hazards
from .metal_device import MTLBuffer, SoftObject
from .metal_library import MTLComputePipelineState
from .runtime import DoubleRuntime, ObjCObject, message
from .signatures import ObjCError, ffi

NOT_ENQUEUED, COMMITTED, COMPLETED, ERROR = 0, 2, 4, 5  # MTLCommandBufferStatus
MAX_IN_FLIGHT = 64  # command buffers of one queue
SLOTS = 31  # buffer and threadgroup arguments each
MAX_BYTES = 4096  # of setBytes
CONSTANTS = 65536  # bytes of constants that a command buffer allocates at a time


@dataclass
class Bindings:
    """What the next dispatch of an encoder gets."""

    pipeline: MTLComputePipelineState | None = None
    buffers: dict[int, tuple[MTLBuffer | None, int, int]] = field(default_factory=dict)
    threadgroup_memory: dict[int, int] = field(default_factory=dict)

    def bind(self, where: object, buffer: MTLBuffer | None, offset: int, slot: int) -> None:
        """Binds a buffer from an offset on. Raises ObjCError for a bad slot or offset."""
        if not 0 <= slot < SLOTS:
            raise ObjCError(f"{where}: buffer slot {slot}; there are slots 0 to {SLOTS - 1}")
        if buffer is None:
            self.buffers.pop(slot, None)
            return
        if offset >= buffer.nbytes:
            raise ObjCError(
                f"{where}: offset {offset} at slot {slot} is not inside {buffer}; were offset and "
                "index swapped?"
            )
        self.buffers[slot] = (buffer, buffer.address + offset, buffer.nbytes - offset)

    def set_threadgroup_memory(self, where: object, nbytes: int, index: int) -> None:
        """Sizes a [[threadgroup(index)]] argument. Raises ObjCError for a bad size."""
        if not 0 <= index < SLOTS:
            raise ObjCError(f"{where}: threadgroup argument {index}; there are 0 to {SLOTS - 1}")
        if nbytes % 16:
            raise ObjCError(
                f"{where}: {nbytes} bytes of threadgroup memory at index {index}; Metal wants a "
                "multiple of 16: round up"
            )
        self.threadgroup_memory[index] = nbytes

    def run(self, where: object, groups: Size, threads: Size, limit: int) -> Run:
        """One dispatch. Raises ObjCError for what Metal would reject, drop or crash on."""
        if self.pipeline is None:
            raise ObjCError(f"{where}: dispatch with no pipeline; send setComputePipelineState:")
        name = self.pipeline.label
        count = threads[0] * threads[1] * threads[2]
        if not 0 < count <= self.pipeline.thread_limit:
            raise ObjCError(
                f"{where}, kernel {name!r}: {threads} = {count} threads in a threadgroup; this pipeline allows 1 to "
                f"{self.pipeline.thread_limit} (Metal drops such a dispatch silently)"
            )
        total = self.pipeline.kernel.static_threadgroup_bytes
        buffers = {}
        for parameter in self.pipeline.params:
            if parameter.kind == "buffer":
                if parameter.index not in self.buffers:
                    raise ObjCError(
                        f"{where}, kernel {name!r}: argument {parameter.name!r} at buffer({parameter.index}) is not "
                        "bound; bind a buffer or bytes to that slot"
                    )
                buffers[parameter.index] = self.buffers[parameter.index][1:]
            elif parameter.kind == "threadgroup":
                if parameter.index not in self.threadgroup_memory:
                    raise ObjCError(
                        f"{where}, kernel {name!r}: threadgroup({parameter.index}) {parameter.name!r} has no length"
                    )
                total += self.threadgroup_memory[parameter.index]
        if total > limit:
            raise ObjCError(
                f"{where}, kernel {name!r}: {total} bytes of threadgroup memory, static and dynamic; the device "
                f"has {limit}"
            )
        grid = (groups[0] * threads[0], groups[1] * threads[1], groups[2] * threads[2])
        memory = dict(self.threadgroup_memory)
        return Run(self.pipeline.kernel, name, buffers, grid, threads, memory)


class MTLCommandQueue(SoftObject):
    """Command buffers in the order of their commit."""

    def __init__(self, runtime: DoubleRuntime) -> None:
        super().__init__(runtime)
        self.unfinished = 0
        self.committed: list[MTLCommandBuffer] = []
        self.running = threading.Lock()
        self.residency_sets: list[Any] = []

    @message("commandBuffer")
    def command_buffer(self) -> ObjCObject:
        return MTLCommandBuffer(self.runtime, self, retains=True).autorelease()

    @message("commandBufferWithUnretainedReferences")
    def unretained_command_buffer(self) -> ObjCObject:
        return MTLCommandBuffer(self.runtime, self, retains=False).autorelease()

    @message("setLabel:")
    def set_label(self, label: Any) -> None:
        self.label = self.runtime.object(label).text

    @message("addResidencySet:")
    def add_residency_set(self, residency: Any) -> None:
        residency_set = self.runtime.object(residency)
        self.hold(residency_set)
        self.residency_sets.append(residency_set)

    @message("removeResidencySet:")
    def remove_residency_set(self, residency: Any) -> None:
        self.residency_sets.remove(self.runtime.object(residency))

    def run_until(self, last: "MTLCommandBuffer") -> None:
        """Runs committed command buffers, oldest first, up to this one."""
        with self.running:
            while last.status_now == COMMITTED:
                self.committed.pop(0).run()


class MTLCommandBuffer(SoftObject):
    """Encoders' work, committed as a whole."""

    def __init__(self, runtime: DoubleRuntime, queue: MTLCommandQueue, retains: bool) -> None:
        super().__init__(runtime)
        self.hold(queue)
        self.queue, self.retains = queue, retains
        self.status_now = NOT_ENQUEUED
        self.waited = False
        self.encoder: MTLComputeCommandEncoder | None = None
        self.runs: list[Run] = []
        self.hazards: list[Hazards] = []
        self.buffers: set[MTLBuffer] = set()
        self.start = self.end = 0.0
        self._failure = ""
        self._constants: list[Memory] = []
        self._constants_used = CONSTANTS
        queue.unfinished += 1
        if queue.unfinished > MAX_IN_FLIGHT:
            raise ObjCError(
                f"{queue}: {queue.unfinished} unfinished command buffers; a queue holds "
                f"{MAX_IN_FLIGHT} and commandBuffer would block for ever: wait for the oldest"
            )

    @message("setLabel:")
    def set_label(self, label: Any) -> None:
        self.label = self.runtime.object(label).text

    @message("computeCommandEncoder")
    def new_encoder(self) -> ObjCObject:
        return self.new_typed_encoder(0)

    @message("computeCommandEncoderWithDispatchType:")
    def new_typed_encoder(self, kind: int) -> ObjCObject:
        if self.status_now != NOT_ENQUEUED:
            raise ObjCError(f"{self}: encoding after commit; make a new command buffer")
        if self.encoder is not None and not self.encoder.ended:
            raise ObjCError(f"{self} has an open encoder; end it before you make another")
        self.encoder = MTLComputeCommandEncoder(self.runtime, self, concurrent=kind == 1)
        return self.encoder.autorelease()

    @message("commit")
    def commit(self) -> None:
        if self.status_now != NOT_ENQUEUED:
            raise ObjCError(f"{self} is committed already; a command buffer runs once")
        if self.encoder is not None and not self.encoder.ended:
            raise ObjCError(f"{self}: commit with an open encoder; send endEncoding first")
        self.status_now = COMMITTED
        for buffer in self.buffers:
            buffer.users.add(self)
        self.retain()  # the queue keeps it until it has run
        self.queue.committed.append(self)

    @message("waitUntilCompleted")
    def wait(self) -> None:
        if self.status_now == NOT_ENQUEUED:
            raise ObjCError(f"{self}: wait before commit would never return; commit it first")
        self.queue.run_until(self)
        self.waited = True

    @message("status")
    def status(self) -> int:
        self._must_have_waited("status")
        return self.status_now

    @message("error")
    def error(self) -> ObjCObject | None:
        self._must_have_waited("error")
        if not self._failure:
            return None
        domain = "MTLCommandBufferErrorDomain"
        return NSError(self.runtime, domain, 3, self._failure).autorelease()

    @message("GPUStartTime")
    def start_time(self) -> float:
        self._must_have_waited("GPUStartTime")
        return self.start

    @message("GPUEndTime")
    def end_time(self) -> float:
        self._must_have_waited("GPUEndTime")
        return self.end

    def _must_have_waited(self, what: str) -> None:
        if self.status_now >= COMMITTED and not self.waited:
            raise ObjCError(f"{self}: {what} read before waitUntilCompleted may still change")

    def run(self) -> None:
        """Executes on the engine; called by the queue, in order."""
        self.start = time.perf_counter()
        faults = self.soft.engine.run(self.runs) if self.runs else []
        self.end = time.perf_counter()
        for hazards in self.hazards:
            faults.extend(hazards.found)
        self._failure = "\n".join(faults)
        self.status_now = ERROR if faults else COMPLETED
        for buffer in self.buffers:
            buffer.users.discard(self)
        self.release()

    def use(self, buffer: MTLBuffer) -> None:
        """Notes that the work refers to a buffer, and keeps it if references are retained."""
        if buffer not in self.buffers:
            self.buffers.add(buffer)
            if self.retains:
                self.hold(buffer)

    def constants(self, pointer: Any, nbytes: int) -> int:
        """Copies bytes of the program; the address is the engine's to read until it has run."""
        if self._constants_used + nbytes > CONSTANTS:
            self._constants.append(self.soft.engine.allocate(CONSTANTS))
            self._constants_used = 0
        address = self._constants[-1].address + self._constants_used
        ffi.memmove(ffi.cast("void *", address), pointer, nbytes)
        self._constants_used += -(-nbytes // 256) * 256
        return address

    def dealloc(self) -> None:
        self.queue.unfinished -= 1


class MTLComputeCommandEncoder(SoftObject):
    """Records dispatches into a command buffer."""

    owners = ("MTLComputeCommandEncoder", "MTLCommandEncoder")

    def __init__(
        self, runtime: DoubleRuntime, commands: MTLCommandBuffer, concurrent: bool
    ) -> None:
        super().__init__(runtime)
        self.hold(commands)
        self.commands, self.concurrent = commands, concurrent
        self.ended = False
        self.bindings = Bindings()
        self.used: set[MTLBuffer] = set()  # announced by useResources
        self.hazards = Hazards()
        if concurrent and self.soft.check:
            commands.hazards.append(self.hazards)

    def __str__(self) -> str:
        return f"{self.commands}, dispatch {len(self.commands.runs)}"

    def _open(self, doing: str) -> None:
        if self.ended:
            raise ObjCError(f"{self}: {doing} after endEncoding; make a new encoder")

    @message("setComputePipelineState:")
    def set_pipeline(self, pipeline: Any) -> None:
        self._open("setComputePipelineState:")
        state = self.runtime.object(pipeline)
        if not isinstance(state, MTLComputePipelineState):
            raise ObjCError(f"{self}: expected a compute pipeline, found {state}")
        if state is not self.bindings.pipeline:
            self.bindings.pipeline = state
            self.commands.hold(state)

    @message("setBuffer:offset:atIndex:")
    def set_buffer(self, handle: Any, offset: int, slot: int) -> None:
        self._open("setBuffer:offset:atIndex:")
        buffer = self.runtime.object(handle)
        if buffer is not None and not isinstance(buffer, MTLBuffer):
            raise ObjCError(f"{self}: slot {slot} expected a buffer, found {buffer}")
        self.bindings.bind(self, buffer, offset, slot)
        if buffer is not None:
            self.commands.use(buffer)

    @message("setBuffers:offsets:withRange:")
    def set_buffers(self, handles: Any, offsets: Any, places: Any) -> None:
        for i in range(places.length):
            self.set_buffer(handles[i], offsets[i], places.location + i)

    @message("setBufferOffset:atIndex:")
    def set_offset(self, offset: int, slot: int) -> None:
        self._open("setBufferOffset:atIndex:")
        if slot not in self.bindings.buffers:
            raise ObjCError(f"{self}: no buffer at slot {slot} whose offset could change")
        self.bindings.bind(self, self.bindings.buffers[slot][0], offset, slot)

    @message("setBytes:length:atIndex:")
    def set_bytes(self, pointer: Any, nbytes: int, slot: int) -> None:
        self._open("setBytes:length:atIndex:")
        if not 0 < nbytes <= MAX_BYTES or not 0 <= slot < SLOTS:
            raise ObjCError(
                f"{self}: setBytes of {nbytes} bytes at slot {slot}; expected 1 to "
                f"{MAX_BYTES} bytes at slots 0 to {SLOTS - 1}: put more into a buffer"
            )
        self.bindings.buffers[slot] = (None, self.commands.constants(pointer, nbytes), nbytes)

    @message("setThreadgroupMemoryLength:atIndex:")
    def set_threadgroup_memory(self, nbytes: int, index: int) -> None:
        self._open("setThreadgroupMemoryLength:atIndex:")
        self.bindings.set_threadgroup_memory(self, nbytes, index)

    @message("dispatchThreadgroups:threadsPerThreadgroup:")
    def dispatch_groups(self, groups: Any, threads: Any) -> None:
        self._open("dispatchThreadgroups:threadsPerThreadgroup:")
        self.record(self.bindings, size(groups), size(threads))

    @message("dispatchThreads:threadsPerThreadgroup:")
    def dispatch_threads(self, grid: Any, threads: Any) -> None:
        self._open("dispatchThreads:threadsPerThreadgroup:")
        self.record(self.bindings, (1, 1, 1), size(threads), size(grid))

    def record(
        self, bindings: Bindings, groups: Size, threads: Size, grid: Size | None = None
    ) -> None:
        """Adds one dispatch, of this encoder or of an indirect command buffer."""
        limit = self.soft.machine.max_threadgroup_memory
        if 0 in groups and 0 in threads and bindings.pipeline is not None:
            return  # an empty dispatch only sets the pipeline
        run = bindings.run(self, groups, threads, limit)
        run.grid = grid or run.grid
        if self.concurrent and self.soft.check:
            self.hazards.add(run.name, bindings)
        if 0 not in run.grid:
            self.commands.runs.append(run)

    @message("memoryBarrierWithScope:")
    def barrier(self, scope: int) -> None:
        self._open("memoryBarrierWithScope:")
        if scope & 1:  # MTLBarrierScopeBuffers
            self.hazards.barrier(None)

    @message("memoryBarrierWithResources:count:")
    def barrier_on(self, handles: Any, count: int) -> None:
        self._open("memoryBarrierWithResources:count:")
        self.hazards.barrier({self.runtime.object(handles[i]) for i in range(count)})

    @message("useResource:usage:")
    def use_resource(self, handle: Any, usage: int) -> None:
        self._open("useResource:usage:")
        buffer = self.runtime.object(handle)
        self.used.add(buffer)
        self.commands.use(buffer)

    @message("useResources:count:usage:")
    def use_resources(self, handles: Any, count: int, usage: int) -> None:
        for i in range(count):
            self.use_resource(handles[i], usage)

    @message("executeCommandsInBuffer:withRange:")
    def execute(self, indirect: Any, places: Any) -> None:
        self._open("executeCommandsInBuffer:withRange:")
        self.runtime.object(indirect).execute(self, places.location, places.length)

    @message("setLabel:")
    def set_label(self, label: Any) -> None:
        self.label = self.runtime.object(label).text

    @message("endEncoding")
    def end(self) -> None:
        self._open("endEncoding")
        self.ended = True

    def dealloc(self) -> None:
        if not self.ended:
            raise ObjCError(
                f"an encoder of {self.commands} was released without endEncoding (Metal aborts "
                "the process); send it in a finally block"
            )


def size(value: Any) -> Size:
    """An MTLSize as a tuple."""
    return (value.width, value.height, value.depth)
