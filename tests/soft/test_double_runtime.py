"""The Objective-C runtime of the double: handles, pools, versions, conversions."""

import sys

import numpy as np
import pytest

from tests.soft.hosts import Host
from tinyrvllm.mtl.api import ffi
from tinyrvllm.soft.objc_double import Machine, ObjCError
from tinyrvllm.soft.objc_double.engine import CompileError
from tinyrvllm.soft.objc_double.languages import in_language
from tinyrvllm.soft.objc_double.runtime import DoubleRuntime
from tinyrvllm.soft.objc_double.signatures import Signature, signatures


@pytest.fixture
def host() -> Host:
    return Host()


def test_the_names_of_the_last_freed_objects_are_known(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[DoubleRuntime.__module__], "ZOMBIES", 2)
    host.runtime._zombies.clear()
    freed = [host.buffer(16 * k) for k in (1, 2, 3)]
    for buffer in freed:
        host.release(buffer)
    with pytest.raises(ObjCError, match="is no object .on a Mac: EXC_BAD_ACCESS.; it got: length"):
        host("MTLBuffer length", freed[0])
    for buffer, nbytes in zip(freed[1:], (32, 48), strict=True):
        with pytest.raises(ObjCError, match=f"MTLBuffer .{nbytes} bytes. is freed already"):
            host("MTLBuffer length", buffer)


def test_pools_end_innermost_first(host: Host) -> None:
    outer, inner = host.runtime.push_pool(), host.runtime.push_pool()
    with pytest.raises(ObjCError, match="innermost first"):
        host.runtime.pop_pool(outer)
    host.runtime.pop_pool(inner)
    host.runtime.pop_pool(outer)
    assert host.runtime.pools == []
    with pytest.raises(ObjCError, match="innermost first"):
        host.runtime.pop_pool(outer)


def test_a_pool_releases_the_last_first_and_tells_of_the_first_fault(host: Host) -> None:
    pool = host.runtime.push_pool()
    first, second, third = (host.commands() for _ in range(3))
    host.release(first)
    host.release(third)
    with pytest.raises(ObjCError) as fault:
        host.runtime.pop_pool(pool)
    assert "MTLCommandBuffer is freed already, and got: release" in str(fault.value)
    with pytest.raises(ObjCError, match="is freed already"):  # it went with the pool
        host.commit(second)
    assert host.runtime.pools == []


@pytest.mark.parametrize(("system", "has"), [((12, 6), False), ((13, 0), True), ((13, 1), True)])
def test_a_message_from_the_version_on_that_brought_it(system: tuple[int, int], has: bool) -> None:
    host = Host(machine=Machine(os_version=system))
    if has:
        assert host("MTLBuffer gpuAddress", host.a)
    else:
        text = r"gpuAddress came with macOS 13\.0; this device is macOS 12\.6"
        with pytest.raises(ObjCError, match=text):
            host("MTLBuffer gpuAddress", host.a)


def test_a_class_answers_no_instance_messages(host: Host) -> None:
    cls = host.runtime.class_named("MTLCompileOptions")
    with pytest.raises(ObjCError, match=r"\+\[MTLCompileOptions retain\]: unrecognized selector"):
        host("NSObject retain", cls)
    assert host.runtime.class_named("MTLNothing") == ffi.NULL


def test_leaks_are_of_metal_s_objects_and_where_they_were_made(host: Host) -> None:
    with host.pool():
        text = host.objc.string("not counted")
        before = len(host.runtime.leaks())
        host.new("MTLCompileOptions")
        assert text
        *_, last = host.runtime.leaks()
    assert len(host.runtime.leaks()) == before + 1
    assert last.startswith("MTLCompileOptions made at ") and "hosts.py:" in last


def test_objects_are_held_once_for_each_hold(host: Host) -> None:
    pipeline, label = host.runtime.object(host.queue), host.runtime.object(host.a)
    for _ in range(2):
        pipeline.hold(label)
    assert label.retain_count == 3
    pipeline.let_go(label)
    assert label.retain_count == 2
    host.release(host.queue)
    assert label.retain_count == 1


def test_values_are_those_of_the_method_s_c_types(host: Host) -> None:
    send = signatures()["newBufferWithLength:options:"]
    assert send.receive([3, 4])[0] == [3, 4]
    with pytest.raises(ObjCError, match="expected 2 arguments, found 1"):
        send.receive([3])
    for wrong in (-1, 2**64, "3", None, host.a):
        with pytest.raises(ObjCError, match=r"takes \(uint64_t, uint64_t\), found"):
            send.receive([wrong, 0])
    sizes = signatures()["dispatchThreadgroups:threadsPerThreadgroup:"]
    own = ffi.new("MTLSize *", (1, 2, 3))[0]
    (groups, threads), _ = sizes.receive([own, (4, 5, 6)])
    assert (groups.width, groups.height, groups.depth) == (1, 2, 3)
    assert (threads.width, threads.height, threads.depth) == (4, 5, 6)
    assert signatures()["retainCount"].receive([]) == ([], None)
    assert signatures()["retainCount"].give(np.uint64(7)) == 7


def test_what_a_caller_believes_is_compared(host: Host) -> None:
    with pytest.raises(ObjCError, match=r"length: the method is Q \(\), the caller's table has q"):
        host.raw("length", "q", "", host.a)
    with pytest.raises(ObjCError, match="unrecognized selector lenght; nearest: length"):
        host.raw("lenght", "Q", "", host.a)


@pytest.mark.parametrize(
    ("system", "version", "number", "words"),
    [
        ((13, 0), None, 300, ["bfloat", "os_log", "os_log_default"]),
        ((14, 0), None, 310, ["os_log", "os_log_default"]),
        ((15, 0), None, 320, []),
        ((25, 9), None, 320, []),
        ((26, 0), None, 400, []),
        ((26, 0), 3 << 16, 300, ["bfloat", "os_log", "os_log_default"]),
        ((26, 0), 3 << 16 | 2, 320, []),
        ((26, 0), 4 << 16, 400, []),
    ],
)
def test_languages(
    system: tuple[int, int], version: int | None, number: int, words: list[str]
) -> None:
    first, second, *forbidden, line, source = in_language("text", version, system).split("\n")
    assert (first, line, source) == ("#undef __METAL_VERSION__", '#line 1 "program_source"', "text")
    assert second == f"#define __METAL_VERSION__ {number}"
    assert [text.split()[1] for text in forbidden] == words


@pytest.mark.parametrize(
    ("system", "version", "says"),
    [((12, 0), None, "0.0"), ((13, 0), 3 << 16 | 1, "3.1"), ((15, 0), 4 << 16, "4.0")],
)
def test_languages_that_there_are_not(
    system: tuple[int, int], version: int | None, says: str
) -> None:
    with pytest.raises(CompileError) as failure:
        in_language("", version, system)
    assert str(failure.value) == f"language version {says} is not supported on macOS {system[0]}"


def test_a_selector_s_frame_may_be_made_twice() -> None:
    """By two threads at once."""
    for _ in range(2):
        assert Signature("madeTwice:", "v", ("Q",), {}).receive([7])[0] == [7]
