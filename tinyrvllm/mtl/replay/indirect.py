"""Dispatches recorded once and replayed with one message: indirect command buffers.

Recording costs host time for each dispatch and each token; a replay costs one message, whatever
is in it. In return everything is fixed but the bytes in the buffers: no constants (put them in a
buffer), and grids for the largest case with kernels that return early.
"""

from collections.abc import Sequence

from .. import api
from ..api import MetalError, declare
from ..buffer import Buffer
from ..command import Encoder
from ..device import Device
from ..library import Pipeline, Size
from ..objc import Owned
from .addresses import use

declare(
    "MTLIndirectCommandBufferDescriptor setCommandTypes: setInheritBuffers:",
    "MTLIndirectCommandBufferDescriptor setInheritPipelineState: setMaxKernelBufferBindCount:",
    "MTLDevice newIndirectCommandBufferWithDescriptor:maxCommandCount:options:",
    "MTLIndirectCommandBuffer indirectComputeCommandAtIndex:",
    "MTLIndirectComputeCommand setComputePipelineState: setKernelBuffer:offset:atIndex: setBarrier",
    "MTLIndirectComputeCommand concurrentDispatchThreadgroups:threadsPerThreadgroup:",
    "MTLComputeCommandEncoder executeCommandsInBuffer:withRange: setComputePipelineState:",
    "MTLComputeCommandEncoder dispatchThreadgroups:threadsPerThreadgroup:",
)
NOTHING: Size = (0, 0, 0)


class IndirectCommands(Owned):
    """Up to `capacity` recorded dispatches, replayed by `execute`."""

    def __init__(self, device: Device, capacity: int, slots: int, label: str = "") -> None:
        """slots: the most buffers that one dispatch binds."""
        self.capacity = capacity
        self.count = 0
        self._buffers: dict[Buffer, None] = {}  # what the dispatches use, in order of first use
        self._pipelines: dict[Pipeline, None] = {}
        # Before Apple9 (M3) a pipeline must have been set in the executing encoder once; an empty
        # dispatch does that (found by tinygrad: runtime/graph/metal.py).
        self._set_first = "Apple9" not in device.limits.families
        objc, send = device.objc, device.objc.send
        with objc.pool(), objc.new("MTLIndirectCommandBufferDescriptor") as descriptor:
            send.setCommandTypes_(descriptor.handle, api.MTLIndirectCommandTypeConcurrentDispatch)
            send.setInheritBuffers_(descriptor.handle, False)
            send.setInheritPipelineState_(descriptor.handle, False)
            send.setMaxKernelBufferBindCount_(descriptor.handle, slots)
            make = send.newIndirectCommandBufferWithDescriptor_maxCommandCount_options_
            handle = make(device.handle, descriptor.handle, capacity, 0)
        super().__init__(objc, handle, label)

    def record(
        self,
        pipeline: Pipeline,
        groups: Size,
        threads: Size,
        buffers: Sequence[tuple[Buffer, int]],
        barrier: bool = True,
    ) -> None:
        """Records the next dispatch; `buffers` are (buffer, offset) at slots 0, 1, ...

        The pipeline must be made with `indirect=True`. barrier: it waits for the dispatches before
        it. Raises MetalError for threads over the pipeline's limit, and when there is no room.
        """
        if self.count == self.capacity:
            raise MetalError(
                f"{self.label!r}: expected up to {self.capacity} dispatches, found more"
            )
        pipeline.check(threads)
        send = self.objc.send
        with self.objc.pool():
            command = send.indirectComputeCommandAtIndex_(self.handle, self.count)
            send.setComputePipelineState_(command, pipeline.handle)
            for slot, (buffer, offset) in enumerate(buffers):
                send.setKernelBuffer_offset_atIndex_(command, buffer.handle, offset, slot)
                self._buffers[buffer] = None
            if barrier:
                send.setBarrier(command)
            send.concurrentDispatchThreadgroups_threadsPerThreadgroup_(command, groups, threads)
        self._pipelines[pipeline] = None
        self.count += 1

    def execute(self, encoder: Encoder) -> None:
        """Replays every recorded dispatch in an encoder."""
        send, handle = self.objc.send, encoder.handle
        if self._set_first:
            for pipeline in self._pipelines:
                send.setComputePipelineState_(handle, pipeline.handle)
                send.dispatchThreadgroups_threadsPerThreadgroup_(handle, NOTHING, NOTHING)
        use(encoder, *self._buffers)  # for hazards, whatever is resident
        send.executeCommandsInBuffer_withRange_(handle, self.handle, (0, self.count))
        encoder.commands.dispatches += self.count
