"""Recording work and submitting it: command buffers and compute encoders.

Nothing runs while you record. `commit` hands the whole command buffer to the GPU, `wait` returns
when it is done, and only then may the CPU look at what it wrote.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Self

from . import api
from .api import MetalError, declare, ffi
from .buffer import Buffer
from .library import Pipeline, Size
from .objc import Owned

if TYPE_CHECKING:
    from .device import Device
    from .profile import Work

MESSAGES = declare(
    command_buffer="MTLCommandQueue commandBuffer",
    set_label="MTLCommandBuffer setLabel:",
    new_encoder="MTLCommandBuffer computeCommandEncoderWithDispatchType:",
    commit="MTLCommandBuffer commit",
    wait="MTLCommandBuffer waitUntilCompleted",
    status="MTLCommandBuffer status",
    error="MTLCommandBuffer error",
    gpu_start="MTLCommandBuffer GPUStartTime",
    gpu_end="MTLCommandBuffer GPUEndTime",
    set_pipeline="MTLComputeCommandEncoder setComputePipelineState:",
    set_buffer="MTLComputeCommandEncoder setBuffer:offset:atIndex:",
    set_bytes="MTLComputeCommandEncoder setBytes:length:atIndex:",
    set_threadgroup_memory="MTLComputeCommandEncoder setThreadgroupMemoryLength:atIndex:",
    dispatch="MTLComputeCommandEncoder dispatchThreadgroups:threadsPerThreadgroup:",
    barrier="MTLComputeCommandEncoder memoryBarrierWithScope:",
    barrier_on="MTLComputeCommandEncoder memoryBarrierWithResources:count:",
    use="MTLComputeCommandEncoder useResources:count:usage:",
    end="MTLCommandEncoder endEncoding",
)
MAX_CONSTANTS = 4096  # bytes that setBytes takes; more belongs in a buffer


class Encoder(Owned):
    """Records dispatches into a command buffer. Made by `Commands.encoder`.

    In a serial encoder each dispatch sees what the ones before it wrote. In a concurrent one they
    may overlap and run in any order, except across a `barrier`.
    """

    def __init__(self, commands: "Commands", concurrent: bool) -> None:
        """Starts encoding, which `close` must end (Metal aborts the process otherwise)."""
        if commands.committed or commands.encoding:
            state = "committed" if commands.committed else "open in another encoder"
            raise MetalError(f"command buffer {commands.label!r} is {state}; it takes no encoder")
        objc, self.send = commands.objc, commands.send
        kind = api.MTLDispatchTypeConcurrent if concurrent else api.MTLDispatchTypeSerial
        handle = self.send.new_encoder(commands.handle, kind)
        try:
            super().__init__(objc, objc.send.retain(handle))
        except BaseException:  # Ctrl-C: what is not ended would abort the process
            self.send.end(handle)
            raise
        self.label = commands.label
        self.commands = commands
        self.concurrent = concurrent
        commands.encoding = True

    def dispatch(
        self,
        pipeline: Pipeline,
        groups: Size,
        threads: Size,
        buffers: Sequence[Buffer | tuple[Buffer, int] | None] = (),
        constants: bytes | bytearray | memoryview | None = None,
        threadgroup_memory: Sequence[int] = (),
        work: "Work | None" = None,
    ) -> None:
        """Records one run of a kernel.

        groups: threadgroups in the grid; threads: threads in each threadgroup, (x, y, z).
        buffers: bound at slots 0, 1, ...; a pair is a buffer and an offset in bytes, None leaves
        a slot unbound. constants: up to 4096 bytes, copied, bound at the slot after the buffers.
        threadgroup_memory: bytes of each [[threadgroup(i)]] argument, multiples of 16.
        work: what the profile should count it as.
        Raises MetalError for more than the pipeline can take (`Pipeline.check`).
        """
        pipeline.check(threads, threadgroup_memory)
        send, handle = self.send, self.handle
        send.set_pipeline(handle, pipeline.handle)
        for slot, bound in enumerate(buffers):
            if bound is None:
                continue
            buffer, offset = bound if isinstance(bound, tuple) else (bound, 0)
            send.set_buffer(handle, buffer.handle, offset, slot)
            self.commands.buffers.add(buffer)
        if constants is not None:
            memory = ffi.from_buffer(constants)
            if not 0 < len(memory) <= MAX_CONSTANTS:
                raise MetalError(
                    f"kernel {pipeline.name!r}: expected 1 to {MAX_CONSTANTS} bytes of "
                    f"constants, found {len(memory)}; put more in a buffer"
                )
            send.set_bytes(handle, memory, len(memory), len(buffers))
        for slot, nbytes in enumerate(threadgroup_memory):
            send.set_threadgroup_memory(handle, nbytes, slot)
        send.dispatch(handle, groups, threads)
        self.commands.dispatches += 1

    def barrier(self, *buffers: Buffer) -> None:
        """Later dispatches see what earlier ones wrote: to these buffers, or to all."""
        if buffers:
            handles = ffi.new("id[]", [buffer.handle for buffer in buffers])
            self.send.barrier_on(self.handle, handles, len(buffers))
        else:
            self.send.barrier(self.handle, api.MTLBarrierScopeBuffers)

    def use(self, *buffers: Buffer) -> None:
        """Later dispatches may reach these by address (`Buffer.gpu_address`), and write to them."""
        handles = ffi.new("id[]", [buffer.handle for buffer in buffers])
        usage = api.MTLResourceUsageRead | api.MTLResourceUsageWrite
        self.send.use(self.handle, handles, len(handles), usage)
        self.commands.buffers.update(buffers)

    def close(self) -> None:
        """Ends encoding; the encoder takes nothing more."""
        if self._handle is not None:
            self.send.end(self.handle)
            self.commands.encoding = False
        super().close()


class Commands(Owned):
    """One command buffer. As a context manager it commits and waits at the end of the block.

    For asynchronous use call `commit` and, later, `wait`. After an exception in the block nothing
    is committed.
    """

    def __init__(self, device: "Device", label: str = "") -> None:
        objc = device.objc
        self.device = device
        self.label = label
        self.send = device.messages
        self.buffers: set[Buffer] = set()  # that its dispatches use
        self.dispatches = 0
        self.committed = self.encoding = False
        self.gpu_seconds = 0.0
        self._created = time.perf_counter()
        with objc.pool():  # the command buffer is autoreleased: retain it before the pool ends
            handle = objc.send.retain(self.send.command_buffer(device.queue.handle))
            super().__init__(objc, handle)
            if label:
                self.send.set_label(handle, objc.string(label))

    def encoder(self, concurrent: bool = False) -> AbstractContextManager[Encoder]:
        """`with commands.encoder() as encoder`: ends the encoding however the block ends."""
        if self.device.profile is not None:
            return self.device.profile.encoder(self, concurrent)
        return self._encoder(concurrent)

    @contextmanager
    def _encoder(self, concurrent: bool) -> Iterator[Encoder]:
        with self.objc.pool(), Encoder(self, concurrent) as encoder:
            yield encoder

    def commit(self) -> None:
        """Hands the work to the GPU. Its buffers may not be looked at until `wait`."""
        if self.committed or self.encoding:
            state = "committed already" if self.committed else "still open in an encoder"
            raise MetalError(f"command buffer {self.label!r} is {state}; it cannot be committed")
        self._encode_seconds = time.perf_counter() - self._created
        with self.objc.pool():
            self.send.commit(self.handle)
        self.committed = True
        with self.device.lock:  # another thread's command buffer may use the same weights
            for buffer in self.buffers:
                buffer.in_flight += 1

    def wait(self) -> None:
        """Returns when the GPU is done. Raises MetalError, with Metal's words, if it failed."""
        if not self.committed:
            raise MetalError(f"command buffer {self.label!r}: commit it before you wait for it")
        if self._handle is None:
            return  # waited for already
        send, handle = self.send, self.handle
        with self.objc.pool():
            try:
                send.wait(handle)
                status = send.status(handle)  # only now: before the wait it says nothing
                if status != api.MTLCommandBufferStatusCompleted:
                    reason = self.objc.error(send.error(handle))
                    raise MetalError(f"command buffer {self.label!r} failed: {reason}")
                self.gpu_seconds = send.gpu_end(handle) - send.gpu_start(handle)
            finally:
                with self.device.lock:
                    for buffer in self.buffers:
                        buffer.in_flight -= 1
                self.close()
        if self.device.timing is not None:
            self.device.timing.add(self._encode_seconds, self.gpu_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            if error[0] is None and not self.committed:
                self.commit()
            if self.committed:  # after an error too: what the GPU uses must outlive its work
                self.wait()
        finally:
            self.close()
