"""Recording work and submitting it: command buffers and compute encoders.

Nothing runs while you record. `commit` hands the whole command buffer to the GPU, `wait` returns
when it is done, and only then may the CPU look at what it wrote.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from . import api
from .api import MetalError, declare, ffi
from .buffer import Buffer
from .library import Pipeline, Size
from .objc import Owned

if TYPE_CHECKING:
    from .device import Device
    from .profile import Work

declare(
    "MTLCommandQueue commandBuffer",
    "MTLCommandBuffer setLabel: computeCommandEncoderWithDispatchType: commit waitUntilCompleted",
    "MTLCommandBuffer status error GPUStartTime GPUEndTime",
    "MTLComputeCommandEncoder setComputePipelineState: setBuffer:offset:atIndex:",
    "MTLComputeCommandEncoder setBytes:length:atIndex: setThreadgroupMemoryLength:atIndex:",
    "MTLComputeCommandEncoder dispatchThreadgroups:threadsPerThreadgroup:",
    "MTLComputeCommandEncoder memoryBarrierWithScope: memoryBarrierWithResources:count:",
    "MTLCommandEncoder endEncoding",
)
MAX_CONSTANTS = 4096  # bytes that setBytes takes; more belongs in a buffer


class Commands(Owned):
    """One command buffer. As a context manager it commits and waits at the end of the block.

    For asynchronous use call `commit` and, later, `wait`. After an exception in the block nothing
    is committed.
    """

    def __init__(self, device: "Device", label: str = "") -> None:
        objc, send = device.objc, device.objc.send
        self.device, self.profile = device, device.profile
        self.buffers: set[Buffer] = set()  # that its dispatches use
        self.dispatches = 0
        self.committed = self.encoding = False
        self.gpu_seconds = 0.0
        self._created = time.perf_counter()
        with objc.pool():  # the command buffer is autoreleased: retain it before the pool ends
            super().__init__(objc, send.retain(send.commandBuffer(device.queue.handle)), label)
            if label:
                send.setLabel_(self.handle, objc.string(label))

    @contextmanager
    def encoder(self, concurrent: bool = False) -> Iterator["Encoder"]:
        """`with commands.encoder() as encoder`: ends the encoding however the block ends."""
        make = self.profile.encoder if self.profile else Encoder
        with self.objc.pool(), make(self, concurrent) as encoder:
            yield encoder

    def commit(self) -> None:
        """Hands the work to the GPU. Its buffers may not be looked at until `wait`."""
        self.must_be_open("be committed")
        self._recorded = time.perf_counter() - self._created
        with self.objc.pool():
            self.objc.send.commit(self.handle)
        self.committed = True
        for buffer in self.buffers:
            buffer.in_flight.add(self)

    def must_be_open(self, wish: str) -> None:
        """Raises MetalError after the commit, and while an encoder is open."""
        if self.committed or self.encoding:
            state = "committed already" if self.committed else "still open in an encoder"
            raise MetalError(f"command buffer {self.label!r} is {state}; it cannot {wish}")

    def wait(self) -> None:
        """Returns when the GPU is done. Raises MetalError, with Metal's words, if it failed."""
        if not self.committed:
            raise MetalError(f"command buffer {self.label!r}: commit it before you wait for it")
        if self.closed:
            return  # waited for already
        send, handle = self.objc.send, self.handle
        with self.objc.pool():
            try:
                send.waitUntilCompleted(handle)
                status = send.status(handle)  # only now: before the wait it says nothing
                if status != api.MTLCommandBufferStatusCompleted:
                    reason = self.objc.error(send.error(handle))
                    raise MetalError(f"command buffer {self.label!r} failed: {reason}")
                self.gpu_seconds = send.GPUEndTime(handle) - send.GPUStartTime(handle)
            finally:
                for buffer in self.buffers:
                    buffer.in_flight.discard(self)
                self.close()
        if self.device.timing is not None:
            self.device.timing.seconds.append((self._recorded, self.gpu_seconds))

    def __exit__(self, *error: object) -> None:
        try:
            if error[0] is None and not self.committed:
                self.commit()
            if self.committed:  # after an error too: what the GPU uses must outlive its work
                self.wait()
        finally:
            self.close()


class Encoder(Owned):
    """Records dispatches into a command buffer. Made by `Commands.encoder`.

    In a serial encoder each dispatch sees what the ones before it wrote. In a concurrent one they
    may overlap and run in any order, except across a `barrier`.
    """

    def __init__(self, commands: Commands, concurrent: bool) -> None:
        """Starts encoding, which `close` must end (Metal aborts the process otherwise)."""
        commands.must_be_open("take an encoder")
        objc, send = commands.objc, commands.objc.send
        order = api.MTLDispatchTypeConcurrent if concurrent else api.MTLDispatchTypeSerial
        handle = send.computeCommandEncoderWithDispatchType_(commands.handle, order)
        try:
            super().__init__(objc, send.retain(handle), commands.label)
        except BaseException:  # Ctrl-C
            send.endEncoding(handle)
            raise
        self.commands = commands
        commands.encoding = True

    def dispatch(
        self,
        pipeline: Pipeline,
        groups: Size,
        threads: Size,
        buffers: Sequence[Buffer | tuple[Buffer, int]] = (),
        constants: bytes = b"",
        threadgroup_memory: Sequence[int] = (),
        work: "Work | None" = None,
    ) -> None:
        """Records one run of a kernel.

        groups: threadgroups in the grid; threads: threads in each threadgroup, (x, y, z).
        buffers: bound at slots 0, 1, ...; a pair is a buffer and an offset in bytes.
        constants: up to 4096 bytes, copied, bound at the slot after the buffers.
        threadgroup_memory: bytes of each [[threadgroup(i)]] argument, multiples of 16.
        work: what the profile should count it as.
        Raises MetalError for more than the pipeline can take (`Pipeline.check`).
        """
        pipeline.check(threads, threadgroup_memory)
        send, handle = self.objc.send, self.handle
        send.setComputePipelineState_(handle, pipeline.handle)
        for slot, bound in enumerate(buffers):
            buffer, offset = bound if isinstance(bound, tuple) else (bound, 0)
            send.setBuffer_offset_atIndex_(handle, buffer.handle, offset, slot)
            self.commands.buffers.add(buffer)
        if nbytes := len(constants):
            if nbytes > MAX_CONSTANTS:
                raise MetalError(
                    f"kernel {pipeline.label!r}: expected up to {MAX_CONSTANTS} bytes of "
                    f"constants, found {nbytes}; put more in a buffer"
                )
            send.setBytes_length_atIndex_(handle, ffi.from_buffer(constants), nbytes, len(buffers))
        for slot, nbytes in enumerate(threadgroup_memory):
            send.setThreadgroupMemoryLength_atIndex_(handle, nbytes, slot)
        send.dispatchThreadgroups_threadsPerThreadgroup_(handle, groups, threads)
        self.commands.dispatches += 1

    def barrier(self, *buffers: Buffer) -> None:
        """Later dispatches see what earlier ones wrote: to these buffers, or to all."""
        send, handles = self.objc.send, ffi.new("id[]", [buffer.handle for buffer in buffers])
        if buffers:
            send.memoryBarrierWithResources_count_(self.handle, handles, len(handles))
        else:
            send.memoryBarrierWithScope_(self.handle, api.MTLBarrierScopeBuffers)

    def close(self) -> None:
        """Ends encoding; the encoder takes nothing more."""
        if not self.closed:
            self.objc.send.endEncoding(self.handle)
            self.commands.encoding = False
        super().close()
