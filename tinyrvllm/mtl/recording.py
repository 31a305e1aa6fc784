"""Dispatches recorded once and replayed with direct sends.

The counterpart of indirect.py for devices and drivers without indirect command buffers, with the
same two calls: `record` and `execute`. Everything that a message needs is made when it is
recorded, so a replay is a flat loop over (function, arguments): at most three sends a dispatch, and
one for each barrier.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .api import MTLBarrierScopeBuffers, declare, ffi
from .buffer import Buffer
from .library import Pipeline, Size
from .sends import in_c

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
    """A list of dispatches for concurrent encoders. One thread at a time replays it."""

    def __init__(self, device: "Device", label: str = "") -> None:
        self.label = label
        self.count = 0
        self._encoder = in_c("@", ffi.NULL)  # of the replay at hand: an argument of every send
        bound = device.objc.messages(MESSAGES)
        self._functions = {name: self._function(getattr(bound, name)) for name in MESSAGES}
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
            self._add("barrier", MTLBarrierScopeBuffers)
        if pipeline is not self._pipeline:
            self._add("set_pipeline", pipeline.handle)
            self._pipeline = pipeline
        handles = ffi.new("id[]", [buffer.handle for buffer, _ in buffers])
        offsets = ffi.new("uint64_t[]", [offset for _, offset in buffers])
        self._add("set_buffers", handles, offsets, (0, len(buffers)))
        self._add("dispatch", groups, threads)
        self._buffers.update(dict.fromkeys(buffer for buffer, _ in buffers))
        self.count += 1

    def _add(self, message: str, *values: Any) -> None:
        function, first = self._functions[message]
        if first:
            self._values += values
            values = tuple(map(in_c, MESSAGES[message].arguments, values))
        self._sends.append((function, (*first, *values)))

    def _function(self, send: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """What a replay calls, and its first arguments: see sends.py; or the runtime's own send."""
        encoder = self._encoder
        if hasattr(send, "native"):
            call, name = send.native
            return call, (encoder, name)
        return (lambda *values: send(ffi.cast("id", encoder.value), *values)), ()

    def execute(self, encoder: "Encoder") -> None:
        """Replays every recorded dispatch in an encoder."""
        self._encoder.value = in_c("@", encoder.handle).value
        for function, arguments in self._sends:
            function(*arguments)
        encoder.commands.buffers.update(self._buffers)
        encoder.commands.dispatches += self.count
