"""The Objective-C runtime double by itself: what Apple documents, message by message."""

import threading
from pathlib import Path

import numpy as np
import pytest

from tests.soft.fake_engine import SOURCE
from tests.soft.hosts import Host
from tinyrvllm.mtl.api import ffi
from tinyrvllm.soft import objc_double
from tinyrvllm.soft.objc_double import Machine, ObjCError, signatures


@pytest.fixture
def host() -> Host:
    return Host()


# ---- ownership


def test_new_is_owned_and_release_frees(host: Host) -> None:
    assert host("NSObject retainCount", host.a) == 1
    host("NSObject retain", host.a)
    assert host("NSObject retainCount", host.a) == 2
    host.release(host.a)
    host.release(host.a)
    with pytest.raises(ObjCError, match="MTLBuffer .512 bytes. is freed already"):
        host("NSObject retainCount", host.a)


def test_everything_else_is_the_pools(host: Host) -> None:
    with host.pool():
        kept, lost = host.commands(), host.commands()
        host("NSObject retain", kept)
    assert host("NSObject retainCount", kept) == 1
    with pytest.raises(ObjCError, match="is freed already"):
        host("NSObject retainCount", lost)


def test_pools_nest(host: Host) -> None:
    with host.pool():
        outer = host.commands()
        with host.pool():
            inner = host.commands()
        assert host("NSObject retainCount", outer) == 1
        with pytest.raises(ObjCError, match="is freed already"):
            host.commit(inner)


def test_pools_belong_to_their_thread(host: Host) -> None:
    failures = []

    def work() -> None:
        token = host.runtime.push_pool()
        host.commands()
        host.runtime.pop_pool(token)
        try:
            host.commands()
        except ObjCError as failure:
            failures.append(str(failure))

    with host.pool():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        host.commands()
    assert len(failures) == 1 and "no pool in place" in failures[0]


def test_a_command_buffer_keeps_what_it_uses(host: Host) -> None:
    host.array(host.a)[:] = 1
    with host.pool():
        commands = host.commands()
        encoder = host.encoder(commands)
        host.add(encoder, host.a, host.a, host.c)
        host.end(encoder)
        host.release(host.a)  # still needed: the command buffer has retained it
        host.commit(commands)
        host.wait(commands)
        assert (host.array(host.c) == 2).all()
    with pytest.raises(ObjCError, match="is freed already"):
        host("MTLBuffer length", host.a)


def test_a_closed_device_tells_of_leaks(host: Host) -> None:
    with pytest.warns(UserWarning, match="MTLBuffer .512 bytes. made at .* was never released"):
        host.release(host.device)


# ---- messages


def test_messages_to_nil_return_zeros(host: Host) -> None:
    assert host("MTLBuffer length", ffi.NULL) == 0
    assert host("MTLBuffer contents", ffi.NULL) == ffi.NULL
    assert host("MTLCommandBuffer GPUStartTime", ffi.NULL) == 0.0
    assert host("MTLDevice maxThreadsPerThreadgroup", ffi.NULL).width == 0
    assert host("NSObject release", ffi.NULL) is None


def test_structs_come_back_by_value(host: Host) -> None:
    threads = host("MTLDevice maxThreadsPerThreadgroup", host.device)
    assert (threads.width, threads.height, threads.depth) == (1024, 1024, 1024)


@pytest.mark.parametrize("text", ["", "plain", "日本語 ünïcode"])
def test_strings(host: Host, text: str) -> None:
    with host.pool():
        string = host.objc.string(text)
        assert host.objc.text(string) == text
        assert host("NSString length", string) == len(text)


def test_structs_of_another_cffi_are_taken(host: Host) -> None:
    host_size = ffi.new("MTLSize *", (4, 1, 1))[0]
    with host.encoding() as (_, encoder):
        host.set_pipeline(encoder, "geometry")
        host.set_buffer(encoder, host.a, 0, 0)
        host.dispatch(encoder, host_size, (32, 1, 1))
    assert host.array(host.a).view(np.uint32)[:4].tolist() == [128, 1, 1, 32]


def test_a_selector_has_the_same_types_in_every_class() -> None:
    seen: dict[str, tuple[str, str]] = {}
    path = Path(signatures.__file__).with_name("methods.tsv")
    for line in path.read_text().splitlines()[1:]:
        _, selector, _, returns, arguments, *_ = line.split("\t")
        assert seen.setdefault(selector, (returns, arguments)) == (returns, arguments)


# ---- Metal


def test_private_memory_has_no_contents(host: Host) -> None:
    private = host.buffer(512, options=2 << 4)
    assert host("MTLBuffer contents", private) == ffi.NULL
    assert host("MTLBuffer length", private) == 512


def test_too_large_a_buffer_is_nil() -> None:
    host = Host(machine=Machine(max_buffer_length=1000))
    assert host.buffer(1001) == ffi.NULL and host.buffer(0) == ffi.NULL
    assert host.buffer(1000) != ffi.NULL


def test_new_buffers_are_zero_and_start_on_a_page(host: Host) -> None:
    buffer = host.buffer(100_000)
    assert not host.array(buffer).any()
    assert int(ffi.cast("uintptr_t", host("MTLBuffer contents", buffer))) % 4096 == 0


def test_bytes_are_copied_when_they_are_set(host: Host) -> None:
    host.array(host.a)[:] = 1
    count = bytearray(np.uint32(128).tobytes())
    with host.pool():
        commands = host.commands()
        encoder = host.encoder(commands)
        host.set_pipeline(encoder, "vector_add")
        for slot, buffer in enumerate((host.a, host.a, host.c)):
            host.set_buffer(encoder, buffer, 0, slot)
        host.set_bytes(encoder, count, 3)
        host.dispatch(encoder)
        count[:] = bytes(4)
        host.end(encoder)
        host.commit(commands)
        host.wait(commands)
    assert (host.array(host.c) == 2).all()


def test_command_buffers_run_in_the_order_of_their_commit(host: Host) -> None:
    """The second adds the first's sum; waiting for the second runs both."""
    host.array(host.a)[:] = 1
    with host.pool():
        first, second = host.commands(), host.commands()
        for commands, buffers in (
            (second, (host.c, host.a, host.b)),
            (first, (host.a, host.a, host.c)),
        ):
            encoder = host.encoder(commands)
            host.add(encoder, *buffers)
            host.end(encoder)
        host.commit(first)
        host.commit(second)
        host.wait(second)
        assert (host.array(host.b) == 3).all()
        host.wait(first)
        assert host("MTLCommandBuffer status", first) == 4


def test_a_fault_is_the_command_buffers_error(host: Host) -> None:
    with host.pool():
        commands = host.commands()
        encoder = host.encoder(commands)
        host.set_pipeline(encoder, "fault")
        host.dispatch(encoder)
        host.end(encoder)
        host.commit(commands)
        host.wait(commands)
        assert host("MTLCommandBuffer status", commands) == 5
        assert "read past buffer(0)" in host.failure(commands)


def test_finished_command_buffers_make_room(host: Host) -> None:
    with host.pool():  # which keeps all of them
        for _ in range(100):
            commands = host.commands()
            host.commit(commands)
            host.wait(commands)


def test_an_empty_dispatch_runs_nothing(host: Host) -> None:
    with host.encoding() as (_, encoder):
        host.set_pipeline(encoder, "fault")
        host.dispatch(encoder, (0, 1, 1), (1, 1, 1))
        host.dispatch(encoder, (0, 0, 0), (0, 0, 0))


@pytest.mark.parametrize("name", ["metal", "soft:fast", ""])
def test_only_its_own_devices(name: str) -> None:
    with pytest.raises(objc_double.Unavailable, match="expected device 'metal', 'soft' or"):
        objc_double.runtime(name)


def test_success_may_store_an_error_too(host: Host) -> None:
    """Only the result tells failure: a bridge that looks at the error must be seen."""
    error = ffi.new("id *")
    with host.pool():
        message = "MTLDevice newLibraryWithSource:options:error:"
        library = host(message, host.device, host.objc.string(SOURCE), ffi.NULL, error)
        assert library and "warnings only" in host.objc.error(error[0])
        host.release(library)
