"""MTLComputeCommandEncoder: records dispatches into a command buffer."""

from typing import Any

from .bindings import SLOTS, Bindings
from .engine import Size
from .hazards import Hazards
from .metal_commands import MTLCommandBuffer
from .metal_device import MTLBuffer, SoftObject
from .metal_library import MTLComputePipelineState
from .runtime import DoubleRuntime, message
from .signatures import ObjCError

MAX_BYTES = 4096  # of setBytes


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
        self.pipelines: set[MTLComputePipelineState] = set()  # that were set here
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
        if state not in self.pipelines:
            self.pipelines.add(state)
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

    def record(self, bindings: Bindings, groups: Size, threads: Size) -> None:
        """Adds one dispatch, of this encoder or of an indirect command buffer."""
        limit = self.soft.machine.max_threadgroup_memory
        if 0 in groups and 0 in threads and bindings.pipeline is not None:
            return  # an empty dispatch only sets the pipeline
        run = bindings.run(self, groups, threads, limit)
        if bindings.pipeline and any(p.holds_addresses for p in bindings.pipeline.params):
            run.resident = [(b.address, b.address + b.nbytes) for b in self.resident()]
        if self.concurrent and self.soft.check:
            self.hazards.add(run, bindings, self.resident() if run.resident else ())
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

    @message("useResources:count:usage:")
    def use_resources(self, handles: Any, count: int, usage: int) -> None:
        self._open("useResources:count:usage:")
        for i in range(count):
            buffer = self.runtime.object(handles[i])
            self.used.add(buffer)
            self.commands.use(buffer)

    def resident(self) -> set[MTLBuffer]:
        """What a kernel may reach through addresses that lie in its buffers."""
        return self.used.union(*(s.allocations for s in self.commands.queue.residency_sets))

    @message("executeCommandsInBuffer:withRange:")
    def execute(self, indirect: Any, places: Any) -> None:
        self._open("executeCommandsInBuffer:withRange:")
        self.runtime.object(indirect).execute(self, places.location, places.length)

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
