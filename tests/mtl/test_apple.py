"""mtl/apple.py against a stand-in for libobjc, in C: the casts, pools and refusals of macOS.

The stand-in has a real objc_msgSend, so structs, doubles and pointers travel as this processor's
calling convention has it: on x86-64 as on an Intel Mac, on aarch64 as on Apple silicon.
"""

import ctypes
import os
import platform
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cffi
import pytest

from tinyrvllm.mtl import MetalError, api, apple
from tinyrvllm.mtl.objc import ObjC
from tinyrvllm.mtl.replay import Recording
from tinyrvllm.soft.cpu import compiler

SOURCE = Path(__file__).with_name("fake_objc.c")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in, compiled; arm64.py compiles it on another machine than it is used on."""
    if made := os.environ.get("TINYRVLLM_FAKE_OBJC"):
        return Path(made)
    if platform.system() != "Linux":
        pytest.skip("the stand-in takes the place of libobjc only on Linux")
    folder = tmp_path_factory.mktemp("objc")
    objects, path = folder / "fake.o", folder / "fake.so"
    cc = compiler.find()
    flags = ["-c", "-O1", "-fPIC", "-ffreestanding", "-fno-sanitize=all", "-fno-stack-protector"]
    subprocess.run([*cc.clang, *flags, str(SOURCE), "-o", str(objects)], check=True)
    cc.link([objects], path)
    return path


@pytest.fixture
def fake(library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stand-in's own variables, in a state like a healthy Mac's."""
    view = cffi.FFI()
    view.cdef("""
        typedef struct { uint64_t width, height, depth; } Size;
        extern void *fake_default_device; extern int fake_translated, fake_pools, fake_releases;
        extern Size fake_groups, fake_threads; extern const char *fake_length_types;
        typedef struct { uint64_t location, length; } Range; extern Range fake_range;
        extern void *fake_encoder, *fake_pipeline, *fake_buffers[3]; extern int fake_lock_kept;
        extern uint64_t fake_offsets[3], fake_scope; extern int (*fake_lock_state)(void);
    """)
    opened = view.dlopen(str(library))
    real = api.ffi.dlopen
    monkeypatch.setattr(api.ffi, "dlopen", lambda name: real(str(library)))
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "mac_ver", lambda: ("15.3.1", ("", "", ""), ""))
    opened.fake_default_device = view.cast("void *", 0x1000)
    opened.fake_translated = opened.fake_releases = 0
    right = opened.fake_length_types
    yield opened
    opened.fake_length_types = right
    opened.fake_lock_state = view.NULL


def send(runtime: apple.AppleRuntime, message: str, receiver: Any, *arguments: Any) -> Any:
    (method,) = api.declare(message)
    return runtime.bind(method.selector, method.returns, method.arguments)(receiver, *arguments)


def test_values_travel_by_their_types(fake: Any) -> None:
    runtime = apple.AppleRuntime()
    device = runtime.default_device()
    threads = send(runtime, "MTLDevice maxThreadsPerThreadgroup", device)
    assert (threads.width, threads.height, threads.depth) == (1024, 512, 256)
    assert send(runtime, "MTLDevice maxBufferLength", device) == 1 << 40
    assert send(runtime, "MTLDevice supportsFamily:", device, 1009) is True
    assert send(runtime, "MTLDevice supportsFamily:", device, 1008) is False
    assert send(runtime, "MTLCommandBuffer GPUStartTime", device) == 2.5
    assert send(runtime, "NSObject retain", device) == device
    assert send(runtime, "NSObject retain", api.ffi.NULL) == api.ffi.NULL
    message = "MTLComputeCommandEncoder dispatchThreadgroups:threadsPerThreadgroup:"
    send(runtime, message, device, (2, 3, 5), (7, 11, 13))
    groups, threads = fake.fake_groups, fake.fake_threads
    assert (groups.width, groups.height, groups.depth) == (2, 3, 5)
    assert (threads.width, threads.height, threads.depth) == (7, 11, 13)


@pytest.fixture
def recording(fake: Any) -> Recording:
    """For a device of which only the messages matter."""
    return Recording(SimpleNamespace(objc=ObjC(apple.AppleRuntime())))  # type: ignore[arg-type]


def handle(address: int) -> Any:
    """A pipeline, buffer or encoder with this for its object; nothing of it is looked at."""
    commands = SimpleNamespace(buffers=set(), dispatches=0)
    return Handle(handle=api.ffi.cast("id", address), check=lambda *_: None, commands=commands)


class Handle(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def test_recorded_sends_travel_by_their_types(fake: Any, recording: Recording) -> None:
    """Two replays of the same dispatch, in two encoders."""
    buffers = [(handle(1 << 47), 0), (handle(0x2000), (1 << 40) + 8), (handle(0x3000), 4)]
    recording.record(handle(0x4000), (2, 3, 5), (7, 11, 13), buffers)
    others = [api.ffi.new("uint64_t[]", [7] * 3) for _ in range(1000)]  # where memory was let go
    for address in (0x5000, (1 << 46) + 16):
        encoder = handle(address)
        recording.execute(encoder)
        assert int(api.ffi.cast("uintptr_t", fake.fake_encoder)) == address
        groups, threads, bound = fake.fake_groups, fake.fake_threads, fake.fake_range
        assert (groups.width, groups.height, groups.depth) == (2, 3, 5)
        assert (threads.width, threads.height, threads.depth) == (7, 11, 13)
        assert (bound.location, bound.length) == (0, 3)
        assert [int(api.ffi.cast("uintptr_t", p)) for p in fake.fake_buffers] == [
            1 << 47, 0x2000, 0x3000,
        ]  # fmt: skip
        assert list(fake.fake_offsets) == [0, (1 << 40) + 8, 4]
        assert int(api.ffi.cast("uintptr_t", fake.fake_pipeline)) == 0x4000
        assert fake.fake_scope == api.MTLBarrierScopeBuffers
        assert encoder.commands.dispatches == 1 and len(encoder.commands.buffers) == 3
    assert others[0][0] == 7


def test_recorded_values_that_do_not_fit_are_refused(recording: Recording) -> None:
    for offset, groups in ((-1, (1, 1, 1)), (1 << 64, (1, 1, 1)), (0, (-1, 1, 1))):
        with pytest.raises(OverflowError):
            recording.record(handle(16), groups, (1, 1, 1), [(handle(32), offset)])
    with pytest.raises(TypeError, match="void"):
        recording.record(SimpleNamespace(handle=16, check=lambda _: None), (1, 1, 1), (1, 1, 1), [])


def test_what_waits_gives_up_the_interpreters_lock_and_the_rest_of_a_step_keeps_it(
    fake: Any, recording: Recording
) -> None:
    check = ctypes.cast(ctypes.pythonapi.PyGILState_Check, ctypes.c_void_p).value
    fake.fake_lock_state = cffi.FFI().cast("int(*)(void)", check)
    runtime = apple.AppleRuntime()

    def is_kept(action: Callable[..., Any], *arguments: Any) -> bool:
        fake.fake_lock_kept = -1
        action(*arguments)
        return {0: False, 1: True}[fake.fake_lock_kept]

    recording.record(handle(16), (1, 1, 1), (1, 1, 1), [])
    assert is_kept(recording.execute, handle(32))
    assert is_kept(send, runtime, "NSObject release", handle(32).handle)
    assert is_kept(runtime.push_pool)
    assert is_kept(runtime.pop_pool, 1)
    assert not is_kept(send, runtime, "MTLCommandBuffer waitUntilCompleted", handle(32).handle)


def test_strings_and_pools(fake: Any) -> None:
    objc = ObjC(apple.AppleRuntime())
    with objc.pool():
        assert fake.fake_pools == 1
        assert objc.text(objc.string("Grüße")) == "Grüße"
    assert fake.fake_pools == 0


def test_nil_default_device_is_the_first_of_all(fake: Any) -> None:
    fake.fake_default_device = cffi.FFI().NULL
    assert apple.AppleRuntime().default_device()
    assert fake.fake_releases == 1  # the list, not the device


def test_wrong_types_are_found_before_the_first_message(fake: Any) -> None:
    text = cffi.FFI().new("char[]", b"I16@0:8")
    fake.fake_length_types = text
    with pytest.raises(MetalError, match="MTLDevice maxBufferLength: this macOS says I16@0:8"):
        apple.AppleRuntime()


def test_what_this_system_does_not_publish_is_listed(fake: Any) -> None:
    runtime = apple.AppleRuntime()
    assert "MTLCommandQueue commandBuffer" in runtime.unverified
    assert "MTLDevice maxBufferLength" not in runtime.unverified


def test_rosetta_is_refused(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    fake.fake_translated = 1
    with pytest.raises(MetalError, match="Intel build running under Rosetta.*arm64 Python"):
        apple.AppleRuntime()
