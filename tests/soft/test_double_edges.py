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
from tinyrvllm.soft.objc_double.engine import Run


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


def test_a_buffer_has_a_byte_at_least(host: Host) -> None:
    assert host.buffer(1) != ffi.NULL and host.buffer(0) == ffi.NULL


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
    for limit, made in ((1024, True), (1023, False)):
        host = Host(machine=objc_double.Machine(max_threadgroup_memory=limit))
        assert (host.pipeline("tile") != ffi.NULL) == made
