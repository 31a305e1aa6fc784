"""Dispatches recorded once and replayed with direct sends.

The counterpart of indirect.py for devices and drivers without indirect command buffers, with the
same two calls: `record` and `execute`. Everything that a message needs is made when it is
recorded, so a replay is a plain loop over (function, arguments): three sends a dispatch, and one
for each barrier.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .api import MTLBarrierScopeBuffers, declare, ffi
from .buffer import Buffer
from .library import Pipeline, Size

if TYPE_CHECKING:
    from .command import Encoder
    from .device import Device

MESSAGES = declare(
    set_pipeline="MTLComputeCommandEncoder setComputePipelineState:",
    set_buffers="MTLComputeCommandEncoder setBuffers:offsets:withRange:",
    dispatch="MTLComputeCommandEncoder dispatchThreadgroups:threadsPerThreadgroup:",
    barrier="MTLComputeCommandEncoder memoryBarrierWithScope:",
)


class Recording:
    """A list of dispatches for concurrent encoders."""

    def __init__(self, device: "Device", label: str = "") -> None:
        self.label = label
        self.send = device.objc.messages(MESSAGES)
        self.count = 0
        self._sends: list[tuple[Any, tuple[Any, ...]]] = []
        self._buffers: dict[Buffer, None] = {}
        self._pipeline: Pipeline | None = None  # the one that is set at this point of a replay

    def record(
        self,
        pipeline: Pipeline,
        groups: Size,
        threads: Size,
        buffers: Sequence[tuple[Buffer, int]],
        barrier: bool = True,
    ) -> None:
        """Records the next dispatch; `buffers` are (buffer, offset) at slots 0, 1, ...

        barrier: it waits for the dispatches before it. Raises MetalError for threads over the
        pipeline's limit.
        """
        pipeline.check(threads)
        send = self.send
        if barrier:
            self._add(send.barrier, MTLBarrierScopeBuffers)
        if pipeline is not self._pipeline:
            self._add(send.set_pipeline, pipeline.handle)
            self._pipeline = pipeline
        handles = ffi.new("id[]", [buffer.handle for buffer, _ in buffers])
        offsets = ffi.new("uint64_t[]", [offset for _, offset in buffers])
        places = ffi.new("NSRange *", (0, len(buffers)))[0]
        self._add(send.set_buffers, handles, offsets, places)
        sizes = ffi.new("MTLSize *", groups)[0], ffi.new("MTLSize *", threads)[0]
        self._add(send.dispatch, *sizes)
        self._buffers.update(dict.fromkeys(buffer for buffer, _ in buffers))
        self.count += 1

    def _add(self, send: Any, *arguments: Any) -> None:
        """Where a runtime tells its C function and selector, a replay calls it with no wrapper."""
        function, *name = getattr(send, "native", (send,))
        self._sends.append((function, (*name, *arguments)))

    def execute(self, encoder: "Encoder") -> None:
        """Replays every recorded dispatch in an encoder."""
        handle = encoder.handle
        for function, arguments in self._sends:
            function(handle, *arguments)
        encoder.commands.buffers.update(self._buffers)
        encoder.commands.dispatches += self.count
