"""Indirect command buffers and residency sets of the double, by raw messages."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.soft.fake_engine import FakeEngine
from tests.soft.hosts import Host
from tinyrvllm.mtl.api import ffi
from tinyrvllm.soft.objc_double import ObjCError
from tinyrvllm.soft.objc_double.engine import Recorded


@pytest.fixture
def host() -> Host:
    return Host()


class ReplayingEngine(FakeEngine):
    """Takes a recorded list of dispatches as one item, as the CUDA engine does."""

    replays = True

    def __init__(self) -> None:
        self.seen: list[Recorded] = []

    def run(self, runs: Sequence[Any]) -> list[str]:
        faults = []
        for item in runs:
            if isinstance(item, Recorded):
                self.seen.append(item)
                for phase in item.phases:
                    faults += super().run(phase)
            else:
                faults += super().run([item])
        return faults


class Indirect:
    """An indirect command buffer by raw messages."""

    def __init__(self, host: Host, count: int = 3, slots: int = 4, threadgroup_slots: int = 0) -> None:
        self.host = host
        owner = "MTLIndirectCommandBufferDescriptor"
        self.described = host.new(owner)
        host(f"{owner} setCommandTypes:", self.described, 32)
        host(f"{owner} setInheritBuffers:", self.described, False)
        host(f"{owner} setInheritPipelineState:", self.described, False)
        if slots:
            host(f"{owner} setMaxKernelBufferBindCount:", self.described, slots)
        if threadgroup_slots:
            message = f"{owner} setMaxKernelThreadgroupMemoryBindCount:"
            host(message, self.described, threadgroup_slots)
        self.handle = self.made(count)

    def made(self, count: int) -> Any:
        message = "MTLDevice newIndirectCommandBufferWithDescriptor:maxCommandCount:options:"
        return self.host(message, self.host.device, self.described, count, 0)

    def command(self, index: int) -> Any:
        message = "MTLIndirectCommandBuffer indirectComputeCommandAtIndex:"
        return self.host(message, self.handle, index)

    def set_buffer(self, command: Any, buffer: Any, slot: int) -> None:
        message = "MTLIndirectComputeCommand setKernelBuffer:offset:atIndex:"
        self.host(message, command, buffer, 0, slot)

    def record(self, index: int, kernel: str, *buffers: Any, barrier: bool = False) -> None:
        host, owner = self.host, "MTLIndirectComputeCommand"
        descriptor = host.new("MTLComputePipelineDescriptor")
        described = "MTLComputePipelineDescriptor"
        host(f"{described} setComputeFunction:", descriptor, host.function(kernel))
        host(f"{described} setSupportIndirectCommandBuffers:", descriptor, True)
        with host.pool():
            pipeline = host(
                "MTLDevice newComputePipelineStateWithDescriptor:options:reflection:error:",
                host.device, descriptor, 0, ffi.NULL, ffi.new("id *"),
            )  # fmt: skip
            command = self.command(index)
            host(f"{owner} setComputePipelineState:", command, pipeline)
            for slot, buffer in enumerate(buffers):
                self.set_buffer(command, buffer, slot)
            if barrier:
                host(f"{owner} setBarrier", command)
            message = f"{owner} concurrentDispatchThreadgroups:threadsPerThreadgroup:"
            host(message, command, (1, 1, 1), (1, 1, 1))

    def execute(self, first: int, count: int, *used: Any) -> None:
        host, owner = self.host, "MTLComputeCommandEncoder"
        with host.encoding(concurrent=True) as (_, encoder):
            if used:
                handles = ffi.new("id[]", list(used))
                host(f"{owner} useResources:count:usage:", encoder, handles, len(used), 3)
            message = f"{owner} executeCommandsInBuffer:withRange:"
            host(message, encoder, self.handle, (first, count))


@pytest.fixture
def replaying(host: Host) -> Indirect:
    """Three commands: c = a + b, then behind a barrier a = c + c and b = c + c."""
    host.runtime.engine = ReplayingEngine()
    for buffer, value in ((host.a, 1), (host.b, 2)):
        host.array(buffer)[:] = value
    number = host.buffer(4)
    host.array(number).view(np.uint32)[:] = 128
    indirect = Indirect(host)
    indirect.record(0, "vector_add", host.a, host.b, host.c, number)
    indirect.record(1, "vector_add", host.c, host.c, host.a, number, barrier=True)
    indirect.record(2, "vector_add", host.c, host.c, host.b, number)
    indirect.everything = (host.a, host.b, host.c, number)  # type: ignore[attr-defined]
    return indirect


def test_an_engine_that_replays_gets_phases_once(replaying: Indirect) -> None:
    host, used = replaying.host, replaying.everything  # type: ignore[attr-defined]
    engine: Any = host.runtime.engine
    replaying.execute(0, 3, *used)
    assert [float(host.array(x)[0]) for x in used[:3]] == [6, 6, 3]
    assert [len(phase) for phase in engine.seen[0].phases] == [1, 2]
    replaying.execute(0, 3, *used)
    replaying.execute(1, 2, *used)
    assert engine.seen[1] is engine.seen[0]
    assert [len(phase) for phase in engine.seen[2].phases] == [2]
    with pytest.raises(ObjCError, match="was not told of: send useResources"):
        replaying.execute(0, 3, *used[:3])
    replaying.record(2, "vector_add", host.c, host.c, host.b, used[3], barrier=True)
    replaying.execute(0, 3, *used)
    assert [len(phase) for phase in engine.seen[3].phases] == [1, 1, 1]


def test_an_older_gpu_replays_nothing(replaying: Indirect) -> None:
    host = replaying.host
    host.runtime.machine.family = 1008
    with pytest.raises(ObjCError, match="before Apple9 the encoder must have had"):
        replaying.execute(0, 3, *replaying.everything)  # type: ignore[attr-defined]


@pytest.mark.parametrize("replays", [False, True])
def test_commands_that_cannot_be_executed(host: Host, replays: bool) -> None:
    if replays:
        host.runtime.engine = ReplayingEngine()
    indirect = Indirect(host)
    indirect.record(0, "geometry", host.a)
    indirect.record(2, "geometry", host.b)
    with pytest.raises(ObjCError, match="command 1 has no dispatch recorded"):
        indirect.execute(0, 3, host.a, host.b)
    with pytest.raises(ObjCError, match="commands 1 to 3 of 3"):
        indirect.execute(1, 3)
    indirect.execute(2, 1, host.b)
    indirect.execute(0, 1, host.a)
    for buffer in (host.a, host.b):
        assert host.array(buffer).view(np.uint32)[:6].tolist() == [1] * 6


def test_a_command_beyond_the_last(host: Host) -> None:
    indirect = Indirect(host)
    with host.pool():
        indirect.command(2)
        with pytest.raises(ObjCError, match="command 3; there are 3"):
            indirect.command(3)


def test_slots_of_an_indirect_command(host: Host) -> None:
    with host.pool():
        message = "MTLIndirectComputeCommand setThreadgroupMemoryLength:atIndex:"
        two = Indirect(host, slots=2, threadgroup_slots=2)
        two.set_buffer(two.command(0), host.a, 1)
        host(message, two.command(0), 16, 1)
        with pytest.raises(ObjCError, match="slot 2; maxKernelBufferBindCount is 2"):
            two.set_buffer(two.command(0), host.a, 2)
        with pytest.raises(ObjCError, match="index 2; maxKernelThreadgroupMemoryBindCount is 2"):
            host(message, two.command(0), 16, 2)
        none = Indirect(host, slots=0)
        with pytest.raises(ObjCError, match="slot 0; maxKernelBufferBindCount is 0"):
            none.set_buffer(none.command(0), host.a, 0)
        with pytest.raises(ObjCError, match="index 0; maxKernelThreadgroupMemoryBindCount is 0"):
            host(message, none.command(0), 16, 0)


def test_threadgroup_memory_of_an_indirect_command(host: Host) -> None:
    indirect = Indirect(host, threadgroup_slots=1)
    with host.pool():
        message = "MTLIndirectComputeCommand setThreadgroupMemoryLength:atIndex:"
        host(message, indirect.command(0), 48, 0)
        indirect.record(0, "tile", host.a)
    indirect.execute(0, 1, host.a)
    assert host.array(host.a).view(np.uint32)[0] == 48


def test_a_command_buffer_keeps_what_it_executes(host: Host) -> None:
    indirect = Indirect(host)
    indirect.record(0, "geometry", host.a)
    for executions in (1, 2):
        with host.pool():
            commands = host.commands()
            encoder = host.encoder(commands, concurrent=True)
            owner, handles = "MTLComputeCommandEncoder", ffi.new("id[]", [host.a])
            host(f"{owner} useResources:count:usage:", encoder, handles, 1, 3)
            for _ in range(executions):
                host(f"{owner} executeCommandsInBuffer:withRange:", encoder, indirect.handle, (0, 1))
            assert host("NSObject retainCount", indirect.handle) > 1
            host.end(encoder)
            host.commit(commands)
            host.wait(commands)
        assert host("NSObject retainCount", indirect.handle) == 1


@pytest.mark.parametrize("missing", ["setInheritBuffers:", "setInheritPipelineState:"])
def test_what_is_inherited_must_be_said(host: Host, missing: str) -> None:
    indirect = Indirect(host)
    host(f"MTLIndirectCommandBufferDescriptor {missing}", indirect.described, True)
    with pytest.raises(ObjCError, match="inherited buffers or pipelines are not supported"):
        indirect.made(1)
    fresh = host.new("MTLIndirectCommandBufferDescriptor")
    host("MTLIndirectCommandBufferDescriptor setCommandTypes:", fresh, 32)
    for message in {"setInheritBuffers:", "setInheritPipelineState:"} - {missing}:
        host(f"MTLIndirectCommandBufferDescriptor {message}", fresh, False)
    indirect.described = fresh
    with pytest.raises(ObjCError, match="inherited buffers or pipelines are not supported"):
        indirect.made(1)


def test_only_concurrent_dispatches(host: Host) -> None:
    indirect = Indirect(host)
    host("MTLIndirectCommandBufferDescriptor setCommandTypes:", indirect.described, 33)
    with pytest.raises(ObjCError, match="holds concurrent dispatches only"):
        indirect.made(1)
