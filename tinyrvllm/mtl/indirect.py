"""Dispatches recorded once and replayed with one message: indirect command buffers.

Recording costs host time for each dispatch and each token; a replay costs one message, whatever
is in it. In return everything is fixed but the bytes in the buffers: no constants (put them in a
buffer), and grids for the largest case with kernels that return early.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import api
from .api import MetalError, declare, ffi
from .buffer import Buffer
from .library import Pipeline, Size
from .objc import Owned

if TYPE_CHECKING:
    from .command import Encoder
    from .device import Device

MESSAGES = declare(
    set_types="MTLIndirectCommandBufferDescriptor setCommandTypes:",
    set_inherit_buffers="MTLIndirectCommandBufferDescriptor setInheritBuffers:",
    set_inherit_pipeline="MTLIndirectCommandBufferDescriptor setInheritPipelineState:",
    set_slots="MTLIndirectCommandBufferDescriptor setMaxKernelBufferBindCount:",
    set_threadgroup_slots=(
        "MTLIndirectCommandBufferDescriptor setMaxKernelThreadgroupMemoryBindCount:"
    ),
    new="MTLDevice newIndirectCommandBufferWithDescriptor:maxCommandCount:options:",
    command="MTLIndirectCommandBuffer indirectComputeCommandAtIndex:",
    set_pipeline="MTLIndirectComputeCommand setComputePipelineState:",
    set_buffer="MTLIndirectComputeCommand setKernelBuffer:offset:atIndex:",
    set_threadgroup_memory="MTLIndirectComputeCommand setThreadgroupMemoryLength:atIndex:",
    set_barrier="MTLIndirectComputeCommand setBarrier",
    dispatch=("MTLIndirectComputeCommand concurrentDispatchThreadgroups:threadsPerThreadgroup:"),
    execute="MTLComputeCommandEncoder executeCommandsInBuffer:withRange:",
    set_encoder_pipeline="MTLComputeCommandEncoder setComputePipelineState:",
    dispatch_now="MTLComputeCommandEncoder dispatchThreadgroups:threadsPerThreadgroup:",
    new_set="MTLDevice newResidencySetWithDescriptor:error:",
    add="MTLResidencySet addAllocation:",
    commit_set="MTLResidencySet commit",
    request="MTLResidencySet requestResidency",
    end="MTLResidencySet endResidency",
    add_to_queue="MTLCommandQueue addResidencySet:",
    remove_from_queue="MTLCommandQueue removeResidencySet:",
)
NOTHING: Size = (0, 0, 0)


class IndirectCommands(Owned):
    """Up to `capacity` recorded dispatches, replayed by `execute`."""

    def __init__(self, device: "Device", capacity: int, slots: int, label: str = "") -> None:
        """slots: the most buffers that one dispatch binds."""
        objc = device.objc
        self.label = label
        self.capacity = capacity
        self.send = send = objc.messages(MESSAGES)
        self.count = 0
        self._buffers: dict[Buffer, None] = {}  # what the dispatches use, in order of first use
        self._pipelines: dict[Pipeline, None] = {}
        # Before Apple9 (M3) a pipeline must have been set in the executing encoder once; an empty
        # dispatch does that (found by tinygrad: runtime/graph/metal.py).
        self._set_first = "Apple9" not in device.limits.families
        with objc.pool(), Owned(objc, objc.new("MTLIndirectCommandBufferDescriptor")) as owned:
            descriptor = owned.handle
            send.set_types(descriptor, api.MTLIndirectCommandTypeConcurrentDispatch)
            send.set_inherit_buffers(descriptor, False)
            send.set_inherit_pipeline(descriptor, False)
            send.set_slots(descriptor, slots)
            if device.limits.os_version >= (14, 0):
                send.set_threadgroup_slots(descriptor, 1)
            handle = send.new(device.handle, descriptor, capacity, 0)
        if not handle:
            raise MetalError(f"{label!r}: no room for {capacity} indirect commands")
        super().__init__(objc, handle)

    def record(
        self,
        pipeline: Pipeline,
        groups: Size,
        threads: Size,
        buffers: Sequence[Buffer | tuple[Buffer, int] | None],
        threadgroup_memory: int = 0,
        barrier: bool = True,
    ) -> None:
        """Records the next dispatch. barrier: it waits for the dispatches before it.

        The pipeline must be made with `indirect=True`.
        """
        if self.count == self.capacity:
            raise MetalError(
                f"{self.label!r}: expected up to {self.capacity} dispatches, found more"
            )
        pipeline.check(threads, [threadgroup_memory] if threadgroup_memory else ())
        send = self.send
        with self.objc.pool():
            command = send.command(self.handle, self.count)
            send.set_pipeline(command, pipeline.handle)
            for slot, bound in enumerate(buffers):
                if bound is None:
                    continue
                buffer, offset = bound if isinstance(bound, tuple) else (bound, 0)
                send.set_buffer(command, buffer.handle, offset, slot)
                self._buffers[buffer] = None
            if threadgroup_memory:
                send.set_threadgroup_memory(command, threadgroup_memory, 0)
            if barrier:
                send.set_barrier(command)
            send.dispatch(command, groups, threads)
        self._pipelines[pipeline] = None
        self.count += 1

    def execute(self, encoder: "Encoder") -> None:
        """Replays every recorded dispatch in an encoder."""
        send, handle = self.send, encoder.handle
        if self._set_first:
            for pipeline in self._pipelines:
                send.set_encoder_pipeline(handle, pipeline.handle)
                send.dispatch_now(handle, NOTHING, NOTHING)
        encoder.use(*self._buffers)  # for hazards, whatever is resident
        send.execute(handle, self.handle, (0, self.count))
        encoder.commands.dispatches += self.count


class ResidencySet(Owned):
    """Buffers that stay resident for every command buffer of the device (macOS 15)."""

    def __init__(self, device: "Device", buffers: Sequence[Buffer]) -> None:
        if device.limits.os_version < (15, 0):
            raise MetalError("residency sets came with macOS 15; this system is older")
        objc = device.objc
        self.send = send = objc.messages(MESSAGES)
        self._queue = device.queue
        error = ffi.new("id *")
        with objc.pool(), Owned(objc, objc.new("MTLResidencySetDescriptor")) as descriptor:
            handle = send.new_set(device.handle, descriptor.handle, error)
            if not handle:
                raise MetalError(f"no residency set: {objc.error(error[0])}")
        super().__init__(objc, handle)
        for buffer in buffers:
            send.add(handle, buffer.handle)
        send.commit_set(handle)
        send.request(handle)
        send.add_to_queue(self._queue.handle, handle)

    def close(self) -> None:
        """Lets the buffers go."""
        if self._handle is not None:
            if not self._queue.closed:  # a queue that is gone holds no set
                self.send.remove_from_queue(self._queue.handle, self._handle)
            self.send.end(self._handle)
        super().close()
