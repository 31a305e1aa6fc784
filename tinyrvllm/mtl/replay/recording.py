"""Dispatches recorded once and replayed with direct sends.

The counterpart of indirect.py for devices and drivers without indirect command buffers, with the
same two calls: `record` and `execute`. Everything that a message needs is made when it is
recorded, so a replay is a flat loop over (function, arguments): at most three sends a dispatch, and
one for each barrier.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ..api import MTLBarrierScopeBuffers, declare, declared, ffi
from ..buffer import Buffer
from ..command import Encoder
from ..device import Device
from ..library import Pipeline, Size
from ..sends import in_c

declare(
    "MTLComputeCommandEncoder setComputePipelineState: setBuffers:offsets:withRange:",
    "MTLComputeCommandEncoder dispatchThreadgroups:threadsPerThreadgroup:",
    "MTLComputeCommandEncoder memoryBarrierWithScope:",
)


class Recording:
    """A list of dispatches for concurrent encoders. One thread at a time replays it."""

    def __init__(self, device: Device, label: str = "") -> None:
        self.label = label
        self.count = 0
        self._encoder = in_c("@", ffi.NULL)  # of the replay at hand: an argument of every send
        self._messages = device.objc.send
        self._sends: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self._values: list[Any] = []  # memory that arguments point to
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
        if barrier:
            self._add("memoryBarrierWithScope_", MTLBarrierScopeBuffers)
        if pipeline is not self._pipeline:
            self._add("setComputePipelineState_", pipeline.handle)
            self._pipeline = pipeline
        handles = ffi.new("id[]", [buffer.handle for buffer, _ in buffers])
        offsets = ffi.new("uint64_t[]", [offset for _, offset in buffers])
        self._add("setBuffers_offsets_withRange_", handles, offsets, (0, len(buffers)))
        self._add("dispatchThreadgroups_threadsPerThreadgroup_", groups, threads)
        self._buffers.update(dict.fromkeys(buffer for buffer, _ in buffers))
        self.count += 1

    def _add(self, message: str, *values: Any) -> None:
        """What a replay calls: see sends.py; or the runtime's own send."""
        send, encoder = getattr(self._messages, message), self._encoder
        if hasattr(send, "native"):
            call, name = send.native
            arguments = map(in_c, declared[message].arguments, values)
            self._sends.append((call, (encoder, name, *arguments)))
            self._values += values
        else:
            self._sends.append((lambda *given: send(ffi.cast("id", encoder.value), *given), values))

    def execute(self, encoder: Encoder) -> None:
        """Replays every recorded dispatch in an encoder."""
        self._encoder.value = in_c("@", encoder.handle).value
        for function, arguments in self._sends:
            function(*arguments)
        encoder.commands.buffers.update(self._buffers)
        encoder.commands.dispatches += self.count
