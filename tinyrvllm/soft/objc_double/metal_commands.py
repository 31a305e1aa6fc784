"""MTLCommandQueue and MTLCommandBuffer: work is recorded, committed, and run late.

Work runs when the program waits, never before: a program that looks too early sees old bytes here
every time, and not only when it is unlucky.
"""

import threading
import time
from typing import Any

from .engine import Memory, Recorded, Run
from .foundation import NSError
from .hazards import Hazards
from .metal_device import MTLBuffer, SoftObject
from .runtime import DoubleRuntime, ObjCObject, message
from .signatures import ObjCError, ffi

NOT_ENQUEUED, COMMITTED, COMPLETED, ERROR = 0, 2, 4, 5  # MTLCommandBufferStatus
MAX_IN_FLIGHT = 64  # command buffers of one queue
CONSTANTS = 65536  # bytes of constants that a command buffer allocates at a time


class MTLCommandQueue(SoftObject):
    """Command buffers in the order of their commit."""

    def __init__(self, runtime: DoubleRuntime) -> None:
        super().__init__(runtime)
        self.unfinished = 0
        self.committed: list[MTLCommandBuffer] = []
        self.running = threading.Lock()
        self.residency_sets: list[Any] = []
        self.spare_constants: list[Memory] = []  # of finished command buffers, to be used again

    @message("commandBuffer")
    def command_buffer(self) -> ObjCObject:
        return MTLCommandBuffer(self.runtime, self, retains=True).autorelease()

    @message("commandBufferWithUnretainedReferences")
    def unretained_command_buffer(self) -> ObjCObject:
        return MTLCommandBuffer(self.runtime, self, retains=False).autorelease()

    @message("addResidencySet:")
    def add_residency_set(self, residency: Any) -> None:
        residency_set = self.runtime.object(residency)
        self.hold(residency_set)
        self.residency_sets.append(residency_set)

    @message("removeResidencySet:")
    def remove_residency_set(self, residency: Any) -> None:
        residency_set = self.runtime.object(residency)
        if residency_set in self.residency_sets:
            self.residency_sets.remove(residency_set)
            self.let_go(residency_set)

    def run_until(self, last: "MTLCommandBuffer") -> None:
        """Runs committed command buffers, oldest first, up to this one."""
        with self.running:
            while last.status_now == COMMITTED:
                self.committed.pop(0).run()


class MTLCommandBuffer(SoftObject):
    """Encoders' work, committed as a whole."""

    def __init__(self, runtime: DoubleRuntime, queue: MTLCommandQueue, retains: bool) -> None:
        super().__init__(runtime)
        self.hold(queue)
        self.queue, self.retains = queue, retains
        self.status_now = NOT_ENQUEUED
        self.waited = False
        self.encoder: Any = None  # the last one made
        self.runs: list[Run | Recorded] = []
        self._submitted: Any = None  # by an engine that runs beside the CPU
        self.hazards: list[Hazards] = []
        self.buffers: set[MTLBuffer] = set()
        self.start = self.end = 0.0
        self._failure = ""
        self._constants: list[Memory] = []
        self._constants_used = CONSTANTS
        with runtime.lock:
            queue.unfinished += 1
        if queue.unfinished > MAX_IN_FLIGHT:
            raise ObjCError(
                f"{queue}: {queue.unfinished} unfinished command buffers; a queue holds "
                f"{MAX_IN_FLIGHT} and commandBuffer would block for ever: wait for the oldest"
            )

    @message("setLabel:")
    def set_label(self, label: Any) -> None:
        self.label = self.runtime.object(label).text

    @message("computeCommandEncoderWithDispatchType:")
    def new_typed_encoder(self, kind: int) -> ObjCObject:
        if self.status_now != NOT_ENQUEUED:
            raise ObjCError(f"{self}: encoding after commit; make a new command buffer")
        if self.encoder is not None and not self.encoder.ended:
            raise ObjCError(f"{self} has an open encoder; end it before you make another")
        self.encoder = self.new_object("MTLComputeCommandEncoder", self, kind == 1)
        return self.encoder.autorelease()

    @message("commit")
    def commit(self) -> None:
        if self.status_now != NOT_ENQUEUED:
            raise ObjCError(f"{self} is committed already; a command buffer runs once")
        if self.encoder is not None and not self.encoder.ended:
            raise ObjCError(f"{self}: commit with an open encoder; send endEncoding first")
        self.status_now = COMMITTED
        for buffer in self.buffers:
            buffer.users.add(self)
        self.retain()  # the queue keeps it until it has run
        self.queue.committed.append(self)
        submit = getattr(self.soft.engine, "submit", None)
        if self.runs and submit is not None:
            self._submitted = submit(self.runs)

    @message("waitUntilCompleted")
    def wait(self) -> None:
        if self.status_now == NOT_ENQUEUED:
            raise ObjCError(f"{self}: wait before commit would never return; commit it first")
        self.queue.run_until(self)
        self.waited = True

    @message("status")
    def status(self) -> int:
        self._must_have_waited("status")
        return self.status_now

    @message("error")
    def error(self) -> ObjCObject | None:
        self._must_have_waited("error")
        return NSError(self.runtime, self._failure).autorelease() if self._failure else None

    @message("GPUStartTime")
    def start_time(self) -> float:
        self._must_have_waited("GPUStartTime")
        return self.start

    @message("GPUEndTime")
    def end_time(self) -> float:
        self._must_have_waited("GPUEndTime")
        return self.end

    def _must_have_waited(self, what: str) -> None:
        if self.status_now >= COMMITTED and not self.waited:
            raise ObjCError(f"{self}: {what} read before waitUntilCompleted may still change")

    def run(self) -> None:
        """Executes on the engine; called by the queue, in order."""
        engine: Any = self.soft.engine
        self.start = time.perf_counter()
        if self._submitted is None:
            faults = engine.run(self.runs) if self.runs else []
            self.end = time.perf_counter()
        else:
            faults, seconds = engine.finish(self._submitted)
            self.end = self.start + seconds
        for hazards in self.hazards:
            faults.extend(hazards.conflicts())
        self._failure = "\n".join(faults)
        self.status_now = ERROR if faults else COMPLETED
        for buffer in self.buffers:
            buffer.users.discard(self)
        self._finish()
        self.release()

    def _finish(self) -> None:
        with self.runtime.lock:
            self.queue.unfinished -= 1

    def use(self, buffer: MTLBuffer) -> None:
        """Notes that the work refers to a buffer, and keeps it if references are retained."""
        if buffer not in self.buffers:
            self.buffers.add(buffer)
            if self.retains:
                self.hold(buffer)

    def constants(self, pointer: Any, nbytes: int) -> int:
        """Copies bytes of the program; the address is the engine's to read until it has run."""
        if self._constants_used + nbytes > CONSTANTS:
            spare = self.queue.spare_constants
            self._constants.append(spare.pop() if spare else self.soft.engine.allocate(CONSTANTS))
            if self._constants[-1].shown is not None:
                self._constants[-1].shown()
            self._constants_used = 0
        address = self._constants[-1].address + self._constants_used
        ffi.memmove(ffi.cast("void *", address), pointer, nbytes)
        self._constants_used += -(-nbytes // 256) * 256
        return address

    def dealloc(self) -> None:
        if self.status_now == NOT_ENQUEUED:
            self._finish()
        self.queue.spare_constants += self._constants
