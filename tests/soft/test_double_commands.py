"""Queues, command buffers, encoders and residency sets of the double, each by itself."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.soft.fake_engine import FakeEngine
from tests.soft.hosts import Host
from tinyrvllm.mtl.api import ffi
from tinyrvllm.soft.objc_double import ObjCError
from tinyrvllm.soft.objc_double.engine import Memory, Run, pages


@pytest.fixture
def host() -> Host:
    return Host()


def counts(host: Host, *objects: Any) -> list[int]:
    return [host("NSObject retainCount", obj) for obj in objects]


# ---- command buffers


def test_sixty_four_command_buffers_in_flight(host: Host) -> None:
    with host.pool():
        for _ in range(64):
            host.commands()
        with pytest.raises(ObjCError, match="65 unfinished command buffers"):
            host.commands()


def test_each_command_buffer_makes_room_once(host: Host) -> None:
    queue = host.runtime.object(host.queue)
    for committed in (False, True):
        with host.pool():
            commands = host.commands()
            assert queue.unfinished == 1
            if committed:
                host.commit(commands)
                host.wait(commands)
                assert queue.unfinished == 0
        assert queue.unfinished == 0


def test_a_new_command_buffer_has_the_status_0(host: Host) -> None:
    with host.pool():
        commands = host.commands()
        assert host("MTLCommandBuffer status", commands) == 0
        host.commit(commands)
        host.wait(commands)
        assert host("MTLCommandBuffer error", commands) == ffi.NULL


def test_every_reading_waits(host: Host) -> None:
    with host.pool():
        commands = host.commands()
        host.commit(commands)
        for what in ("status", "error", "GPUStartTime", "GPUEndTime"):
            with pytest.raises(ObjCError, match=f"{what} read before waitUntilCompleted"):
                host(f"MTLCommandBuffer {what}", commands)


def test_one_that_retains_nothing(host: Host) -> None:
    with host.pool():
        message = "MTLCommandQueue commandBufferWithUnretainedReferences"
        unretained, retained = host(message, host.queue), host.commands()
        for commands, buffer, expected in ((unretained, host.b, 1), (retained, host.c, 2)):
            encoder = host.encoder(commands)
            host.set_buffer(encoder, buffer, 0, 0)
            host.set_buffer(encoder, buffer, 0, 1)  # once is enough
            host.end(encoder)
            host.commit(commands)
            assert counts(host, buffer) == [expected]
        with pytest.raises(ObjCError, match="was freed while .* may still use it"):
            host.release(host.b)
        host.wait(retained)
    assert counts(host, host.c) == [1]
    host.runtime.faults.clear()


def test_a_command_buffer_keeps_its_pipelines(host: Host) -> None:
    pipeline = host.pipeline("vector_add")
    before = counts(host, pipeline)[0]
    with host.encoding() as (_, encoder):
        for _ in range(2):  # once is enough
            host("MTLComputeCommandEncoder setComputePipelineState:", encoder, pipeline)
        assert counts(host, pipeline) == [before + 1]
    assert counts(host, pipeline) == [before]


def test_an_encoder_keeps_its_command_buffer(host: Host) -> None:
    with host.pool():
        commands = host.commands()
        before = counts(host, commands)[0]
        encoder = host.encoder(commands)
        assert counts(host, commands) == [before + 1]
        host.end(encoder)


class CountingEngine(FakeEngine):
    """Counts its allocations, and has the memory of a device beside the CPU."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.shown = 0

    def allocate(self, nbytes: int) -> Memory:
        self.made.append(nbytes)
        memory = pages(nbytes)
        memory.shown = self._show
        return memory

    def _show(self) -> None:
        self.shown += 1


def test_constants_are_allocated_64_kb_at_a_time_and_used_again(host: Host) -> None:
    host.runtime.engine = engine = CountingEngine()
    for _ in range(2):
        with host.encoding() as (_, encoder):
            for _ in range(16):  # 64 KB exactly
                host.set_bytes(encoder, bytes(4096), 0)
        assert engine.made == [65536]
    with host.encoding() as (_, encoder):
        for _ in range(17):
            host.set_bytes(encoder, bytes(4096), 0)
    assert engine.made == [65536, 65536]
    assert engine.shown == 4  # the device may have touched it since
    with host.pool():
        first, second = host.commands(), host.commands()
        for commands in (first, second):
            encoder = host.encoder(commands)
            host.set_bytes(encoder, bytes(4), 0)
            host.end(encoder)
    assert engine.made == [65536, 65536]


def test_contents_are_shown_first(host: Host) -> None:
    host.runtime.engine = engine = CountingEngine()
    buffer = host.buffer(16)
    host("MTLBuffer contents", buffer)
    assert engine.shown == 1


class BesideEngine(FakeEngine):
    """Starts work at the commit and tells how long it took, as a GPU does."""

    def __init__(self) -> None:
        self.submitted: list[list[str]] = []

    def submit(self, runs: Sequence[Run]) -> Sequence[Run]:
        self.submitted.append([run.name for run in runs])
        return runs

    def finish(self, runs: Sequence[Run]) -> tuple[list[str], float]:
        return self.run(runs), 0.5


def test_an_engine_beside_the_cpu_starts_at_the_commit(host: Host) -> None:
    host.runtime.engine = engine = BesideEngine()
    host.array(host.a)[:] = 1
    with host.pool():
        commands, empty = host.commands(), host.commands()
        encoder = host.encoder(commands)
        host.add(encoder, host.a, host.a, host.c)
        host.end(encoder)
        host.commit(commands)
        host.commit(empty)
        assert engine.submitted == [["vector_add"]]
        host.wait(commands)
        host.wait(empty)
        start, end = (host(f"MTLCommandBuffer GPU{x}Time", commands) for x in ("Start", "End"))
        assert end - start == pytest.approx(0.5)
        assert (host.array(host.c) == 2).all()
        start, end = (host(f"MTLCommandBuffer GPU{x}Time", empty) for x in ("Start", "End"))
        assert 0 < start <= end


def test_residency_sets_of_a_queue(host: Host) -> None:
    described = host.new("MTLResidencySetDescriptor")
    message = "MTLDevice newResidencySetWithDescriptor:error:"
    residency = host(message, host.device, described, ffi.new("id *"))
    for _ in range(2):
        host("MTLResidencySet addAllocation:", residency, host.a)
    assert counts(host, host.a, residency) == [2, 1]
    host("MTLCommandQueue addResidencySet:", host.queue, residency)
    assert counts(host, residency) == [2]
    found = host.runtime.object(residency)
    assert found.allocations == set()
    host("MTLResidencySet commit", residency)
    assert found.allocations == {host.runtime.object(host.a)}
    for _ in range(2):  # one that is not there is not missed
        host("MTLCommandQueue removeResidencySet:", host.queue, residency)
    assert counts(host, residency) == [1] and host.runtime.object(host.queue).residency_sets == []
    host.release(residency)
    assert counts(host, host.a) == [1]


# ---- encoders


def test_several_buffers_at_once(host: Host) -> None:
    with host.encoding() as (_, encoder):
        host.set_pipeline(encoder, "vector_add")
        for buffer, value in ((host.a, 1), (host.b, 2)):
            host.array(buffer)[:] = value
        handles, offsets = ffi.new("id[]", [host.b, host.c]), ffi.new("uint64_t[]", [0, 256])
        message = "MTLComputeCommandEncoder setBuffers:offsets:withRange:"
        host(message, encoder, handles, offsets, (1, 2))
        host.set_buffer(encoder, host.a, 0, 0)
        host.set_bytes(encoder, np.uint32(64).tobytes(), 3)
        host.dispatch(encoder)
    assert host.array(host.c).tolist() == [0] * 64 + [3] * 64


def test_slots_0_to_30(host: Host) -> None:
    with host.encoding() as (_, encoder):
        memory = "MTLComputeCommandEncoder setThreadgroupMemoryLength:atIndex:"
        host.set_buffer(encoder, host.a, 0, 30)
        host.set_bytes(encoder, bytes(1), 30)
        host.set_bytes(encoder, bytes(4096), 0)
        host(memory, encoder, 16, 30)
        with pytest.raises(ObjCError, match="buffer slot 31; there are slots 0 to 30"):
            host.set_buffer(encoder, host.a, 0, 31)
        with pytest.raises(ObjCError, match="slot 31"):
            host.set_bytes(encoder, bytes(1), 31)
        with pytest.raises(ObjCError, match="setBytes of 0 bytes"):
            host("MTLComputeCommandEncoder setBytes:length:atIndex:", encoder, ffi.NULL, 0, 0)
        with pytest.raises(ObjCError, match="threadgroup argument 31; there are 0 to 30"):
            host(memory, encoder, 16, 31)


def test_offsets_of_constants_are_multiples_of_4(host: Host) -> None:
    """`n` of `vector_add` is in the constant address space."""
    for offset in (4, 6):
        with host.encoding() as (_, encoder):
            host.set_pipeline(encoder, "vector_add")
            for slot, buffer in enumerate((host.a, host.a, host.c)):
                host.set_buffer(encoder, buffer, 2, slot)
            host.set_buffer(encoder, host.b, offset, 3)
            if offset == 4:
                host.dispatch(encoder)
            else:
                with pytest.raises(ObjCError, match="'n' at buffer.3. starts at byte 6; .* of 4"):
                    host.dispatch(encoder)


def test_only_a_barrier_of_buffers_orders_buffers(host: Host) -> None:
    for scope, ordered in ((1, True), (2, False), (3, True)):
        with host.pool():
            commands = host.commands()
            encoder = host.encoder(commands, concurrent=True)
            host.add(encoder, host.a, host.b, host.c)
            host("MTLComputeCommandEncoder memoryBarrierWithScope:", encoder, scope)
            host.add(encoder, host.c, host.b, host.a)
            host.end(encoder)
            host.commit(commands)
            host.wait(commands)
            assert (host("MTLCommandBuffer status", commands) == 4) == ordered


def test_unchecked_encoders_note_no_hazards() -> None:
    host = Host(check=False)
    with host.pool():
        commands = host.commands()
        encoder = host.encoder(commands, concurrent=True)
        host.add(encoder, host.a, host.b, host.c)
        host.add(encoder, host.c, host.b, host.a)
        host.end(encoder)
        host.commit(commands)
        host.wait(commands)
        assert host("MTLCommandBuffer status", commands) == 4


AFTER_THE_END: dict[str, tuple[object, ...]] = {
    "setComputePipelineState:": (ffi.NULL,),
    "setBuffer:offset:atIndex:": (ffi.NULL, 0, 0),
    "setBytes:length:atIndex:": (ffi.new("char[4]"), 4, 0),
    "setThreadgroupMemoryLength:atIndex:": (16, 0),
    "dispatchThreadgroups:threadsPerThreadgroup:": ((0, 0, 0), (0, 0, 0)),
    "memoryBarrierWithScope:": (1,),
    "memoryBarrierWithResources:count:": (ffi.NULL, 0),
    "useResources:count:usage:": (ffi.NULL, 0, 1),
    "executeCommandsInBuffer:withRange:": (ffi.NULL, (0, 0)),
}


@pytest.mark.parametrize("selector", AFTER_THE_END)
def test_an_ended_encoder_takes_nothing(host: Host, selector: str) -> None:
    with host.pool():
        encoder = host.encoder(host.commands())
        host.end(encoder)
        with pytest.raises(ObjCError, match=f"{selector} after endEncoding; make a new encoder"):
            host(f"MTLComputeCommandEncoder {selector}", encoder, *AFTER_THE_END[selector])


def test_a_pipeline_s_descriptor_holds_its_function(host: Host) -> None:
    descriptor, function = host.new("MTLComputePipelineDescriptor"), host.function("fault")
    host("MTLComputePipelineDescriptor setComputeFunction:", descriptor, function)
    assert counts(host, function) == [2]
    host("MTLComputePipelineDescriptor setComputeFunction:", descriptor, ffi.NULL)
    host.release(descriptor)
    assert counts(host, function) == [1]
