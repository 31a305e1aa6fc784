"""MTLIndirectCommandBuffer and MTLResidencySet."""

from typing import Any

from .bindings import Bindings
from .engine import Recorded, Run
from .metal_device import MTLBuffer, SoftObject
from .metal_encoder import MTLComputeCommandEncoder, size
from .runtime import DoubleRuntime, ObjCObject, message
from .signatures import ObjCError


class MTLIndirectCommandBufferDescriptor(SoftObject):
    """What an indirect command buffer can hold."""

    types = 0
    inherits_buffers = inherits_pipeline = True
    slots = threadgroup_slots = 0

    @message("setCommandTypes:")
    def set_types(self, types: int) -> None:
        self.types = types

    @message("setInheritBuffers:")
    def set_inherits_buffers(self, inherits: bool) -> None:
        self.inherits_buffers = inherits

    @message("setInheritPipelineState:")
    def set_inherits_pipeline(self, inherits: bool) -> None:
        self.inherits_pipeline = inherits

    @message("setMaxKernelBufferBindCount:")
    def set_slots(self, count: int) -> None:
        self.slots = count

    @message("setMaxKernelThreadgroupMemoryBindCount:")
    def set_threadgroup_slots(self, count: int) -> None:
        self.threadgroup_slots = count


class MTLIndirectCommandBuffer(SoftObject):
    """Dispatches to replay."""

    def __init__(
        self, runtime: DoubleRuntime, described: MTLIndirectCommandBufferDescriptor, count: int
    ) -> None:
        super().__init__(runtime)
        if described.types != 32:  # MTLIndirectCommandTypeConcurrentDispatch
            raise ObjCError("an indirect command buffer here holds concurrent dispatches only")
        if described.inherits_buffers or described.inherits_pipeline:
            raise ObjCError("inherited buffers or pipelines are not supported: set both to NO")
        self.slots, self.threadgroup_slots = described.slots, described.threadgroup_slots
        self.commands = [MTLIndirectComputeCommand(runtime, self) for _ in range(count)]
        self._recorded: dict[tuple[int, int], tuple[Recorded, set[MTLBuffer]]] = {}

    @message("indirectComputeCommandAtIndex:")
    def command(self, index: int) -> ObjCObject:
        if index >= len(self.commands):
            raise ObjCError(f"{self}: command {index}; there are {len(self.commands)}")
        command = self.commands[index]
        command.retain()
        return command.autorelease()

    def execute(self, encoder: MTLComputeCommandEncoder, first: int, count: int) -> None:
        """Adds commands to an encoder, as if they were dispatched there."""
        encoder.commands.hold(self)
        last = first + count
        if last > len(self.commands):
            raise ObjCError(f"{self}: commands {first} to {last - 1} of {len(self.commands)}")
        # an older GPU runs a pipeline from here only after the encoder has had it set
        needs_setting = self.soft.machine.family < 1009
        if getattr(self.soft.engine, "replays", False) and not needs_setting:
            self._replay(encoder, first, last)
            return
        for index, command in enumerate(self.commands[first:last], start=first):
            if command.sizes is None:
                raise ObjCError(f"{self}: command {index} has no dispatch recorded")
            pipeline = command.bindings.pipeline
            if needs_setting and pipeline not in encoder.pipelines:
                raise ObjCError(
                    f"{self}: before Apple9 the encoder must have had {pipeline} set once: set it "
                    "and dispatch nothing before executeCommandsInBuffer"
                )
            for buffer, *_ in command.bindings.buffers.values():
                if buffer not in encoder.used:
                    raise ObjCError(
                        f"{self}: command {index} uses {buffer}, which the encoder was not told "
                        "of: send useResources:count:usage: on every replay"
                    )
            if command.barrier:
                encoder.hazards.barrier(None)
            encoder.record(command.bindings, *command.sizes)

    def _replay(self, encoder: MTLComputeCommandEncoder, first: int, last: int) -> None:
        """The same, in one item: checked when first executed, then with every buffer it uses."""
        if (first, last) not in self._recorded:
            phases: list[list[Run]] = []
            buffers: set[MTLBuffer] = set()
            for index, command in enumerate(self.commands[first:last], start=first):
                if command.sizes is None:
                    raise ObjCError(f"{self}: command {index} has no dispatch recorded")
                groups, threads = command.sizes
                limit = self.soft.machine.max_threadgroup_memory
                run = command.bindings.run(command, groups, threads, limit)
                if command.barrier or not phases:
                    phases.append([])
                phases[-1].append(run)
                buffers |= {buffer for buffer, *_ in command.bindings.buffers.values() if buffer}
            self._recorded[first, last] = Recorded(phases), buffers
        recorded, buffers = self._recorded[first, last]
        if missing := buffers - encoder.used:
            raise ObjCError(
                f"{self} uses {next(iter(missing))}, which the encoder was not told of: send "
                "useResources:count:usage: on every replay"
            )
        encoder.commands.runs.append(recorded)

    def changed(self) -> None:
        """A command was recorded anew."""
        self._recorded.clear()

    def dealloc(self) -> None:
        for command in self.commands:
            command.release()


class MTLIndirectComputeCommand(SoftObject):
    """One recorded dispatch."""

    def __init__(self, runtime: DoubleRuntime, parent: MTLIndirectCommandBuffer) -> None:
        super().__init__(runtime)
        self._slots, self._threadgroup_slots = parent.slots, parent.threadgroup_slots
        self._changed = parent.changed
        self.bindings = Bindings()
        self.sizes: tuple | None = None
        self.barrier = False

    @message("setComputePipelineState:")
    def set_pipeline(self, handle: Any) -> None:
        pipeline = self.runtime.object(handle)
        if not pipeline.indirect:
            raise ObjCError(
                f"{pipeline} was made without supportIndirectCommandBuffers; set it in the "
                "pipeline's descriptor"
            )
        self.bindings.pipeline = pipeline

    @message("setKernelBuffer:offset:atIndex:")
    def set_buffer(self, handle: Any, offset: int, slot: int) -> None:
        if slot >= self._slots:
            raise ObjCError(f"{self}: slot {slot}; maxKernelBufferBindCount is {self._slots}")
        self.bindings.bind(self, self.runtime.object(handle), offset, slot)

    @message("setThreadgroupMemoryLength:atIndex:")
    def set_threadgroup_memory(self, nbytes: int, index: int) -> None:
        if index >= self._threadgroup_slots:
            raise ObjCError(
                f"{self}: threadgroup index {index}; maxKernelThreadgroupMemoryBindCount is "
                f"{self._threadgroup_slots}"
            )
        self.bindings.set_threadgroup_memory(self, nbytes, index)

    @message("concurrentDispatchThreadgroups:threadsPerThreadgroup:")
    def dispatch(self, groups: Any, threads: Any) -> None:
        self.sizes = (size(groups), size(threads))
        self._changed()

    @message("setBarrier")
    def set_barrier(self) -> None:
        self.barrier = True


class MTLResidencySetDescriptor(SoftObject):
    """How large a residency set will be."""


class MTLResidencySet(SoftObject):
    """Buffers that stay where the GPU can reach them."""

    def __init__(self, runtime: DoubleRuntime) -> None:
        super().__init__(runtime)
        self._added: set[MTLBuffer] = set()
        self.allocations: set[MTLBuffer] = set()  # that kernels may reach: the committed ones

    @message("addAllocation:")
    def add(self, handle: Any) -> None:
        buffer = self.runtime.object(handle)
        if buffer not in self._added:
            self._added.add(buffer)
            self.hold(buffer)

    @message("commit")
    def commit(self) -> None:
        self.allocations = set(self._added)

    @message("requestResidency")
    def request(self) -> None:
        """All memory is resident here."""

    @message("endResidency")
    def end(self) -> None:
        """All memory is resident here."""
