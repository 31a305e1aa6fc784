"""The double at its limits: the last thing that is allowed, and the first that is not."""

import itertools
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.soft.fake_engine import FakeEngine
from tests.soft.hosts import Host
from tinyrvllm.mtl.api import ffi
from tinyrvllm.soft import cuda, objc_double
from tinyrvllm.soft.objc_double import ObjCError
from tinyrvllm.soft.objc_double.engine import Recorded, Run


@pytest.fixture
def host() -> Host:
    return Host()


def geometry(host: Host, groups: tuple[int, ...], threads: tuple[int, ...]) -> list[int]:
    """Grid and group that the kernel sees; at most 64 threads in a group."""
    with host.encoding() as (_, encoder):
        host.set_pipeline(encoder, "geometry")
        host.set_buffer(encoder, host.a, 0, 0)
        host.dispatch(encoder, groups, threads)
    return host.array(host.a).view(np.uint32)[:6].tolist()


# ---- dispatches


def test_threads_of_all_three_dimensions_count(host: Host) -> None:
    assert geometry(host, (2, 3, 5), (2, 4, 8)) == [4, 12, 40, 2, 4, 8]
    for threads in ((8, 8, 2), (65, 1, 1), (1, 65, 1), (1, 1, 65), (5, 13, 1)):
        with pytest.raises(ObjCError, match="allows 1 to 64"):
            geometry(host, (1, 1, 1), threads)


def test_nil_takes_a_buffer_away(host: Host) -> None:
    with host.encoding() as (_, encoder):
        host.set_pipeline(encoder, "geometry")
        host.set_buffer(encoder, ffi.NULL, 0, 0)  # nothing there yet
        host.set_buffer(encoder, host.a, 0, 0)
        host.set_buffer(encoder, ffi.NULL, 0, 0)
        with pytest.raises(ObjCError, match="'out' at buffer.0. is not bound"):
            host.dispatch(encoder)


def test_a_buffer_from_an_offset_has_the_rest(host: Host) -> None:
    seen: list[tuple[int, int]] = []

    def run(runs: Sequence[Run]) -> list[str]:
        seen.append(runs[0].buffers[0])
        return []

    host.runtime.engine.run = run  # type: ignore[method-assign]
    for offset in (0, 4, 508):
        with host.encoding() as (_, encoder):
            host.set_pipeline(encoder, "geometry")
            host.set_buffer(encoder, host.a, offset, 0)
            host.dispatch(encoder)
    start = int(ffi.cast("uintptr_t", host("MTLBuffer contents", host.a)))
    assert seen == [(start, 512), (start + 4, 508), (start + 508, 4)]


def test_all_threadgroup_memory_is_allowed(host: Host) -> None:
    """1024 bytes that the kernel declares and 31744 of ours are the device's 32768."""
    for nbytes in (31744, 31760):
        with host.encoding() as (_, encoder):
            host.set_pipeline(encoder, "tile")
            host.set_buffer(encoder, host.a, 0, 0)
            message = "MTLComputeCommandEncoder setThreadgroupMemoryLength:atIndex:"
            host(message, encoder, nbytes, 0)
            if nbytes == 31744:
                host.dispatch(encoder)
            else:
                with pytest.raises(ObjCError, match="32784 bytes of threadgroup memory"):
                    host.dispatch(encoder)
    assert host.array(host.a).view(np.uint32)[0] == 31744


# ---- devices


def test_a_card_has_apples_limits_but_for_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Any = FakeEngine()
    engine.card = SimpleNamespace(memory=1000)
    monkeypatch.setattr(cuda, "open_engine", lambda: engine)
    runtime = objc_double.runtime("cuda")
    machine = runtime.machine
    assert (machine.max_buffer_length, machine.working_set) == (1000, 900)
    assert (runtime.engine, runtime.name, machine.family) == (engine, "cuda", 1009)


def test_without_a_driver_there_is_no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise cuda.NoDriver("no driver here")

    monkeypatch.setattr(cuda, "open_engine", fail)
    with pytest.raises(objc_double.Unavailable, match="no driver here"):
        objc_double.runtime("cuda")


def test_checks_are_only_made_when_asked_for() -> None:
    assert not objc_double.metal(FakeEngine()).check
    assert objc_double.metal(FakeEngine(), check=True).check


@pytest.mark.skipif(sys.platform == "win32", reason="Windows maps memory without flags anyway")
def test_memory_where_mmap_has_no_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("mmap.MAP_PRIVATE")
    memory = objc_double.engine.pages(100)
    assert memory.nbytes == 100 and bytes(ffi.buffer(ffi.cast("char *", memory.address), 100)) == bytes(100)


def test_the_system_s_version_has_three_numbers(host: Host) -> None:
    with host.pool():
        info = host("NSProcessInfo processInfo", host.runtime.class_named("NSProcessInfo"))
        version = host("NSProcessInfo operatingSystemVersion", info)
    assert (version.major, version.minor, version.patch) == (15, 0, 0)


def test_families_up_to_the_machine_s_own(host: Host) -> None:
    asked = (1000, 1001, 1009, 1010, 5000, 5001, 5002)
    supports = [host("MTLDevice supportsFamily:", host.device, family) for family in asked]
    assert supports == [False, True, True, False, False, True, False]


def test_class_messages_have_a_version_too() -> None:
    machine = objc_double.Machine(os_version=(1, 0))
    runtime = objc_double.metal(FakeEngine(), machine=machine)
    new = runtime.bind("new", "@", ())
    with pytest.raises(ObjCError, match="MTLCompileOptions new came with macOS 10"):
        new(runtime.class_named("MTLCompileOptions"))


# ---- what holds what


def test_a_command_buffer_holds_its_queue(host: Host) -> None:
    with host.pool():
        host.commands()
        assert host("NSObject retainCount", host.queue) == 2
    assert host("NSObject retainCount", host.queue) == 1


def test_constants_do_not_overlap(host: Host) -> None:
    """They start at multiples of 256 bytes, as Metal has it for constant buffers."""
    seen: list[Run] = []

    def run(runs: Sequence[Run]) -> list[str]:
        seen.extend(runs)
        return []

    host.runtime.engine.run = run  # type: ignore[method-assign]
    sizes = (4, 256, 257, 4096, 1)
    with host.encoding() as (_, encoder):
        host.set_pipeline(encoder, "geometry")
        for nbytes in sizes:
            host.set_bytes(encoder, bytes(nbytes), 0)
            host.dispatch(encoder)
    starts = [run.buffers[0][0] for run in seen]
    assert [run.buffers[0][1] for run in seen] == list(sizes)
    assert [b - a for a, b in itertools.pairwise(starts)] == [256, 256, 512, 4096]


def test_a_kernel_may_declare_all_threadgroup_memory() -> None:
    """`tile` declares 1024 bytes."""
    Host(machine=objc_double.Machine(max_threadgroup_memory=1024)).pipeline("tile")
    host = Host(machine=objc_double.Machine(max_threadgroup_memory=1023))
    assert host.pipeline("tile") == ffi.NULL


# ---- indirect command buffers


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
        self.described = host.objc.new(owner)
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
        descriptor = host.objc.new("MTLComputePipelineDescriptor")
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


@pytest.mark.parametrize("missing", ["setInheritBuffers:", "setInheritPipelineState:"])
def test_what_is_inherited_must_be_said(host: Host, missing: str) -> None:
    indirect = Indirect(host)
    host(f"MTLIndirectCommandBufferDescriptor {missing}", indirect.described, True)
    with pytest.raises(ObjCError, match="inherited buffers or pipelines are not supported"):
        indirect.made(1)
    fresh = host.objc.new("MTLIndirectCommandBufferDescriptor")
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
