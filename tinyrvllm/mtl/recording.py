"""Dispatches recorded once and replayed with direct sends.

The counterpart of indirect.py for devices and drivers without indirect command buffers, with the
same two calls: `record` and `execute`. Everything that a message needs is made when it is
recorded, so a replay is a flat loop over (function, arguments): at most three sends a dispatch, and
one for each barrier.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .api import C_TYPES, Method, MTLBarrierScopeBuffers, declare, ffi
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
# A struct of one pointer travels as the pointer itself does, on x86-64 and on arm64. But cffi reads
# it when the call is made: so the encoder, another one in each replay, can be in arguments that
# are the same ones in all.
ffi.cdef("typedef struct { id object; } Receiver;")


class Recording:
    """A list of dispatches for concurrent encoders. One thread at a time replays it."""

    def __init__(self, device: "Device", label: str = "") -> None:
        self.label = label
        self.count = 0
        self._receiver = ffi.new("Receiver *")  # the encoder of the replay at hand
        bound = device.objc.messages(MESSAGES)
        self._functions = {
            name: self._function(getattr(bound, name), method) for name, method in MESSAGES.items()
        }
        self._sends: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
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
        self._add("set_buffers", handles, offsets, ffi.new("NSRange *", (0, len(buffers)))[0])
        sizes = ffi.new("MTLSize *", groups)[0], ffi.new("MTLSize *", threads)[0]
        self._add("dispatch", *sizes)
        self._buffers.update(dict.fromkeys(buffer for buffer, _ in buffers))
        self.count += 1

    def _add(self, message: str, *arguments: Any) -> None:
        function, *first = self._functions[message]
        self._sends.append((function, (*first, *arguments)))

    def _function(self, send: Any, method: Method) -> tuple[Any, ...]:
        """What a replay calls, and its first arguments. A runtime that tells its C function has
        that called with no Python in between."""
        receiver = self._receiver
        if not hasattr(send, "native"):
            return (lambda *arguments: send(receiver.object, *arguments),)
        function, name = send.native
        arguments = ", ".join(["Receiver", "SEL", *(C_TYPES[kind] for kind in method.arguments)])
        return ffi.cast(f"{C_TYPES[method.returns]}(*)({arguments})", function), receiver[0], name

    def execute(self, encoder: "Encoder") -> None:
        """Replays every recorded dispatch in an encoder."""
        self._receiver.object = encoder.handle
        for function, arguments in self._sends:
            function(*arguments)
        encoder.commands.buffers.update(self._buffers)
        encoder.commands.dispatches += self.count
