"""The checker is checked: programs that break one rule each, and the message each must get.

The first half sends raw messages, the second changes one line of the bridge. On a Mac most of
these abort the process, hang, leak or compute nonsense.
"""

import gc
import importlib
import shutil
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pytest import MonkeyPatch

from tests.mtl import scenario
from tests.soft.hosts import Host
from tinyrvllm import mtl
from tinyrvllm.mtl.api import ffi
from tinyrvllm.soft.objc_double import Machine, ObjCError

BRIDGE = Path(mtl.__file__).parent
BROKEN: list[tuple[Callable[[Host], object], str]] = []  # (host, pattern of the message)


def broken(pattern: str) -> Callable[[Callable[[Host], object]], Callable[[Host], object]]:
    """Registers a broken host and what it must be told."""

    def register(host: Callable[[Host], object]) -> Callable[[Host], object]:
        BROKEN.append((host, pattern))
        return host

    return register


# ---- encoders and command buffers


@broken("released without endEncoding.*finally")
def encoder_never_ended(host: Host) -> None:
    with host.pool():
        host.encoder(host.commands())


@broken("commit with an open encoder.*endEncoding first")
def commit_with_open_encoder(host: Host) -> None:
    with host.pool():
        commands = host.commands()
        encoder = host.encoder(commands)
        try:
            host.commit(commands)
        finally:
            host.end(encoder)


@broken("has an open encoder; end it")
def two_encoders(host: Host) -> None:
    with host.encoding() as (commands, _):
        host.encoder(commands)


@broken("setBuffer.* after endEncoding; make a new encoder")
def encode_after_end(host: Host) -> None:
    with host.pool():
        encoder = host.encoder(host.commands())
        host.end(encoder)
        host.set_buffer(encoder, host.a, 0, 0)


@broken("endEncoding after endEncoding")
def end_twice(host: Host) -> None:
    with host.encoding() as (_, encoder):
        host.end(encoder)


@broken("encoding after commit; make a new command buffer")
def encode_after_commit(host: Host) -> None:
    with host.pool():
        commands = host.commands()
        host.commit(commands)
        host.encoder(commands)


@broken("committed already; a command buffer runs once")
def commit_twice(host: Host) -> None:
    with host.pool():
        commands = host.commands()
        host.commit(commands)
        host.commit(commands)


@broken("wait before commit would never return")
def wait_before_commit(host: Host) -> None:
    with host.pool():
        host.wait(host.commands())


@broken("status read before waitUntilCompleted")
def status_before_wait(host: Host) -> None:
    with host.pool():
        commands = host.commands()
        host.commit(commands)
        host("MTLCommandBuffer status", commands)


@broken("GPUEndTime read before waitUntilCompleted")
def time_before_wait(host: Host) -> None:
    with host.pool():
        commands = host.commands()
        host.commit(commands)
        host("MTLCommandBuffer GPUEndTime", commands)


@broken("65 unfinished command buffers.*wait for the oldest")
def too_many_command_buffers(host: Host) -> None:
    with host.pool():
        for _ in range(65):
            host.commands()


# ---- dispatches


@broken("dispatch with no pipeline")
def no_pipeline(host: Host) -> None:
    with host.encoding() as (_, encoder):
        host.dispatch(encoder)


@broken("'vector_add'.*'b' at buffer.1. is not bound")
def unbound_argument(host: Host) -> None:
    with host.encoding() as (_, encoder):
        host.set_pipeline(encoder, "vector_add")
        host.set_buffer(encoder, host.a, 0, 0)
        host.dispatch(encoder)


@broken(r"\(2048, 1, 1\) = 2048 threads.*allows 1 to 1024")
def grid_and_group_swapped(host: Host) -> None:
    with host.encoding() as (_, encoder):
        host.set_pipeline(encoder, "fault")
        host.dispatch(encoder, (32, 1, 1), (2048, 1, 1))


@broken(r"'geometry'.*65 threads.*allows 1 to 64")
def more_threads_than_the_kernel_declares(host: Host) -> None:
    with host.encoding() as (_, encoder):
        host.set_pipeline(encoder, "geometry")
        host.set_buffer(encoder, host.a, 0, 0)
        host.dispatch(encoder, (1, 1, 1), (65, 1, 1))


@broken("0 threads in a threadgroup")
def no_threads(host: Host) -> None:
    with host.encoding() as (_, encoder):
        host.set_pipeline(encoder, "fault")
        host.dispatch(encoder, (1, 1, 1), (0, 1, 1))


@broken("setBytes of 4097 bytes at slot 3.*1 to 4096.*into a buffer")
def too_many_bytes(host: Host) -> None:
    with host.encoding() as (_, encoder):
        host.set_bytes(encoder, bytes(4097), 3)


@broken("threadgroup.0. 'shared' has no length")
def threadgroup_memory_without_length(host: Host) -> None:
    with host.encoding() as (_, encoder):
        host.set_pipeline(encoder, "tile")
        host.set_buffer(encoder, host.a, 0, 0)
        host.dispatch(encoder)


def _threadgroup_memory(host: Host, nbytes: int) -> None:
    with host.encoding() as (_, encoder):
        host.set_pipeline(encoder, "tile")
        host.set_buffer(encoder, host.a, 0, 0)
        message = "MTLComputeCommandEncoder setThreadgroupMemoryLength:atIndex:"
        host(message, encoder, nbytes, 0)
        host.dispatch(encoder)


@broken("100 bytes of threadgroup memory at index 0.*multiple of 16: round up")
def threadgroup_memory_not_a_multiple_of_16(host: Host) -> None:
    _threadgroup_memory(host, 100)


@broken("33024 bytes of threadgroup memory, static and dynamic; the device has 32768")
def too_much_threadgroup_memory(host: Host) -> None:
    _threadgroup_memory(host, 32000)  # and 1024 that the kernel declares itself


@broken("offset 512 at slot 0 is not inside MTLBuffer.*512 bytes")
def offset_outside(host: Host) -> None:
    with host.encoding() as (_, encoder):
        host.set_buffer(encoder, host.a, 512, 0)


@broken("buffer slot 31; there are slots 0 to 30")
def slot_outside(host: Host) -> None:
    with host.encoding() as (_, encoder):
        host.set_buffer(encoder, host.a, 0, 31)


@broken("constant argument 'n' at buffer.3. starts at byte 2; it must be a multiple of 4")
def constants_off_their_alignment(host: Host) -> None:
    with host.encoding() as (_, encoder):
        host.set_pipeline(encoder, "vector_add")
        for slot, buffer in enumerate((host.a, host.a, host.c, host.b)):
            host.set_buffer(encoder, buffer, 2 if slot == 3 else 0, slot)
        host.dispatch(encoder)


@broken("slot 0 expected a buffer, found MTLComputePipelineState 'vector_add'")
def pipeline_bound_as_a_buffer(host: Host) -> None:
    with host.encoding() as (_, encoder):
        host.set_buffer(encoder, host.pipeline("vector_add"), 0, 0)


# ---- lifetimes


@broken("freed already, and got: release. It was released too often")
def released_twice(host: Host) -> None:
    host.release(host.a)
    host.release(host.a)


@broken("freed already, and got: length.*retain what you keep")
def used_after_release(host: Host) -> None:
    host.release(host.a)
    host("MTLBuffer length", host.a)


@broken("freed already, and got: release")
def released_what_the_pool_owns(host: Host) -> None:
    with host.pool():
        host.release(host.commands())


@broken("freed already, and got: commit")
def kept_past_the_pool(host: Host) -> None:
    with host.pool():
        commands = host.commands()
    host.commit(commands)


@broken("autoreleased with no pool in place.*Open an autorelease pool on this thread")
def no_pool(host: Host) -> None:
    host.commands()


@broken("autoreleased with no pool in place")
def pool_of_another_thread(host: Host) -> None:
    faults: list[ObjCError] = []

    def work() -> None:
        try:
            host.commands()
        except ObjCError as fault:
            faults.append(fault)

    with host.pool():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    raise faults[0]


@broken("innermost first")
def pools_out_of_order(host: Host) -> None:
    outer = host.runtime.push_pool()
    host.runtime.push_pool()
    host.runtime.pop_pool(outer)


@broken("512 bytes. was freed while MTLCommandBuffer may still use it: wait")
def buffer_freed_in_flight(host: Host) -> None:
    with host.pool():
        select = "commandBufferWithUnretainedReferences"
        commands = host.raw(select, "@", "", host.queue)
        encoder = host.encoder(commands)
        host.add(encoder, host.a, host.b, host.c)
        host.end(encoder)
        host.commit(commands)
        host.release(host.c)


@broken("MTLBuffer .512 bytes. made at .*hosts.py:[0-9]+ was never released: close it")
def leak(host: Host) -> None:
    raise ObjCError("; ".join(host.runtime.leaks()))


# ---- types


@broken("unrecognized selector setBuffer:atIndex:offset:; nearest: .*setBuffer:offset:atIndex:")
def no_such_selector(host: Host) -> None:
    host.raw("setBuffer:atIndex:offset:", "v", "@ Q Q", host.a, host.b, 0, 0)


@broken(r"-\[MTLBuffer .* endEncoding\]: unrecognized selector sent")
def wrong_receiver(host: Host) -> None:
    host.end(host.a)


@broken(r"\+\[NSString UTF8String\]: unrecognized selector")
def instance_message_to_a_class(host: Host) -> None:
    host("NSString UTF8String", host.runtime.class_named("NSString"))


@broken("the method is Q .., the caller's table has I")
def wrong_width_in_the_table(host: Host) -> None:
    host.raw("length", "I", "", host.a)


@broken("the method is v .@ Q Q., the caller's table has v .@ q Q.")
def wrong_sign_in_the_table(host: Host) -> None:
    host.raw("setBuffer:offset:atIndex:", "v", "@ q Q", host.a, host.b, 0, 0)


@broken("setBuffer.*takes .id, uint64_t, uint64_t.*negative")
def negative_offset(host: Host) -> None:
    with host.encoding() as (_, encoder):
        host.set_buffer(encoder, host.a, -4, 0)


@broken("newBufferWithLength:options: takes .uint64_t.*too big")
def number_wider_than_its_type(host: Host) -> None:
    host.buffer(1 << 64)


@broken("takes .uint64_t, uint64_t., found .512.0, 0.: an integer is required")
def float_for_an_integer(host: Host) -> None:
    host.buffer(512.0)  # type: ignore[arg-type]


@broken("takes .id.*int")
def number_for_an_object(host: Host) -> None:
    with host.encoding() as (_, encoder):
        host.set_buffer(encoder, 12345, 0, 0)


@broken("0x3039 is no object .on a Mac: EXC_BAD_ACCESS.; it got: length")
def wild_pointer(host: Host) -> None:
    host("MTLBuffer length", ffi.cast("id", 12345))


@broken("expected 2 arguments, found 1")
def missing_argument(host: Host) -> None:
    host("MTLDevice newBufferWithLength:options:", host.device, 512)


@broken("came with macOS 15.0; this device is macOS 14.0")
def message_newer_than_the_system(host: Host) -> None:
    host.runtime.os_version = (14, 0)
    host("MTLCompileOptions setMathMode:", host.new("MTLCompileOptions"), 0)


# ---- memory


@broken("must be multiples of the page size")
def wrapped_memory_off_its_page(host: Host) -> None:
    message = "MTLDevice newBufferWithBytesNoCopy:length:options:deallocator:"
    memory = ffi.cast("void *", int(ffi.cast("uintptr_t", ffi.new("char[8192]"))) | 8)
    host(message, host.device, memory, 4096, 0, ffi.NULL)


@broken("storage mode 1 does not exist on Apple silicon")
def managed_storage(host: Host) -> None:
    host.buffer(512, options=1 << 4)


def _conflict(host: Host, first: tuple, second: tuple, barrier: list | None = None) -> None:
    """Two additions in a concurrent encoder, and the error of the command buffer."""
    with host.pool():
        commands = host.commands()
        encoder = host.encoder(commands, concurrent=True)
        host.add(encoder, *first)
        if barrier:
            message = "MTLComputeCommandEncoder memoryBarrierWithResources:count:"
            host(message, encoder, ffi.new("id[]", barrier), len(barrier))
        host.add(encoder, *second)
        host.end(encoder)
        host.commit(commands)
        host.wait(commands)
        raise ObjCError(host.failure(commands))


@broken(r"0 .* writes bytes 0 to 511 of .*\('c' at slot 2\), then .* reads .*'a' at slot 0")
def read_after_write(host: Host) -> None:
    _conflict(host, (host.a, host.b, host.c), (host.c, host.b, host.buffer(512)))


@broken(r"0 \(vector_add\) reads bytes 0 to 511 .*'a' at slot 0.*1 .* writes .*'c' at slot 2")
def write_after_read(host: Host) -> None:
    _conflict(host, (host.a, host.b, host.c), (host.b, host.b, host.a))


@broken("0 .vector_add. writes .*'c' at slot 2.*1 .vector_add. writes them .'c' at slot 2.")
def write_after_write(host: Host) -> None:
    _conflict(host, (host.a, host.b, host.c), (host.b, host.a, host.c))


@broken("missing barrier: dispatch 0 .vector_add. writes .*'c' at slot 2")
def barrier_on_the_wrong_buffer(host: Host) -> None:
    second = (host.c, host.b, host.buffer(512))
    _conflict(host, (host.a, host.b, host.c), second, barrier=[host.a, host.b])


@pytest.mark.parametrize(("program", "pattern"), BROKEN, ids=[h.__name__ for h, _ in BROKEN])
def test_broken_host_is_told(program: Callable[[Host], object], pattern: str) -> None:
    with pytest.raises(ObjCError, match=pattern):
        program(Host())


# ---- the same host without the mistakes


def test_correct_hosts_are_left_alone() -> None:
    host = Host()
    host.array(host.a)[:] = np.arange(128)
    host.array(host.b)[:] = 1
    with host.encoding(concurrent=True) as (commands, encoder):
        host.add(encoder, host.a, host.b, host.c)
        message = "MTLComputeCommandEncoder memoryBarrierWithResources:count:"
        host(message, encoder, ffi.new("id[]", [host.c]), 1)
        host.add(encoder, host.c, host.b, host.c)
        host("NSObject retain", commands)
    assert host.array(host.c)[5] == 7 and "no reason" in host.failure(commands)
    with host.encoding(concurrent=True) as (commands, encoder):  # readers may share
        host.add(encoder, host.a, host.b, host.c)
        host.add(encoder, host.a, host.b, host.buffer(512))
        host("MTLComputeCommandEncoder memoryBarrierWithScope:", encoder, 1)
        host.add(encoder, host.b, host.b, host.c)
        host("NSObject retain", commands)
    assert "no reason" in host.failure(commands)


def test_bytes_read_too_early_are_old() -> None:
    host = Host()
    host.array(host.a)[:] = 2
    with host.pool():
        commands = host.commands()
        encoder = host.encoder(commands)
        host.add(encoder, host.a, host.a, host.c)
        host.end(encoder)
        host.commit(commands)
        assert not host.array(host.c).any()
        host.wait(commands)
        assert (host.array(host.c) == 4).all()


def test_a_machine_may_allow_fewer_threads() -> None:
    host = Host(machine=Machine(max_pipeline_threads=512))
    pipeline = host.pipeline("vector_add")
    assert host("MTLComputePipelineState maxTotalThreadsPerThreadgroup", pipeline) == 512


# ---- the bridge with one line changed: each must fail `tests/mtl/scenario.py`

MUTANTS = {
    "encoder never ended": (
        "command.py", "            self.objc.send.endEncoding(self.handle)\n", "",
    ),
    "encoder not released": (
        "command.py", "            self.commands.encoding = False\n        super().close()\n",
        "            self.commands.encoding = False\n",
    ),
    "encoding and committing allowed at any time": (
        "command.py", "if self.committed or self.encoding:", "if False:",
    ),
    "encoding and commit allowed after commit": (
        "command.py", "if self.committed or self.encoding:", "if self.encoding:",
    ),
    "encoding and commit allowed while encoding": (
        "command.py", "if self.committed or self.encoding:", "if self.committed:",
    ),
    "buffers may be closed in flight": (
        "buffer.py",
        "        self._must_be_idle()\n        super().close()", "        super().close()",
    ),
    "encoder not retained": (
        "command.py", "send.retain(handle), commands.label", "handle, commands.label",
    ),
    "command buffer not retained": (
        "command.py", "send.retain(send.commandBuffer(device.queue.handle))",
        "send.commandBuffer(device.queue.handle)",
    ),
    "command buffer retained twice": (
        "command.py", "send.retain(send.commandBuffer(device.queue.handle))",
        "send.retain(send.retain(send.commandBuffer(device.queue.handle)))",
    ),
    "no pool for command buffers": ("command.py", "with objc.pool():", "if True:"),
    "no pool while encoding": (
        "command.py", "with self.objc.pool(), make(self, concurrent) as encoder:",
        "with make(self, concurrent) as encoder:",
    ),
    "no wait": ("command.py", "                send.waitUntilCompleted(handle)\n", ""),
    "no commit": (
        "command.py", "            self.objc.send.commit(self.handle)\n", "            pass\n",
    ),
    "status ignored": (
        "command.py", "if status != api.MTLCommandBufferStatusCompleted:", "if False:",
    ),
    "status read before the wait": (
        "command.py",
        "                send.waitUntilCompleted(handle)\n                status = send.status(handle)",
        "                status = send.status(handle)\n                send.waitUntilCompleted(handle)",
    ),
    "committed although the block failed": (
        "command.py", "if error[0] is None and not self.committed:", "if not self.committed:",
    ),
    "reads allowed in flight": (
        "command.py", "            buffer.in_flight.add(self)", "            pass",
    ),
    "buffer in flight for ever": (
        "command.py", "                    buffer.in_flight.discard(self)", "                    pass",
    ),
    "grid and group swapped": (
        "command.py", "threadsPerThreadgroup_(handle, groups, threads)",
        "threadsPerThreadgroup_(handle, threads, groups)",
    ),
    "offset and index swapped": (
        "command.py", "atIndex_(handle, buffer.handle, offset, slot)",
        "atIndex_(handle, buffer.handle, slot, offset)",
    ),
    "offset dropped": (
        "command.py", "atIndex_(handle, buffer.handle, offset, slot)",
        "atIndex_(handle, buffer.handle, 0, slot)",
    ),
    "threads not compared": (
        "library.py", "if not 0 < threads[0] * threads[1] * threads[2] <= self.max_threads:",
        "if False:",
    ),
    "threadgroup memory not limited": ("library.py", "own + sum(threadgroup_memory) > limit", "False"),
    "threadgroup memory not in sixteens": (
        "library.py", "any(n % 16 for n in threadgroup_memory)", "False",
    ),
    "constants not limited": ("command.py", "if nbytes > MAX_CONSTANTS:", "if False:"),
    "constants at the wrong slot": (
        "command.py", "nbytes, len(buffers))", "nbytes, len(buffers) + 1)",
    ),
    "constants cut short": (
        "command.py", "nbytes, len(buffers))", "nbytes // 4, len(buffers))",
    ),
    "barrier does nothing": (
        "command.py", "Scope_(self.handle, api.MTLBarrierScopeBuffers)", "Scope_(self.handle, 0)",
    ),
    "barrier on too few buffers": (
        "command.py", "memoryBarrierWithResources_count_(self.handle, handles, len(handles))",
        "memoryBarrierWithResources_count_(self.handle, handles, 0)",
    ),
    "threadgroup memory dropped": (
        "command.py", "            send.setThreadgroupMemoryLength_atIndex_(handle, nbytes, slot)\n",
        "            pass\n",
    ),
    "private storage": ("buffer.py", "device.objc.send, MTLResourceStorageModeShared",
                        "device.objc.send, 32"),
    "wrapped length not rounded": (
        "buffer.py", "length = -(-nbytes // PAGESIZE) * PAGESIZE", "length = nbytes",
    ),
    "wrapped memory copied": ("buffer.py", "if wrapped is None:", "if True:"),
    "nil buffer": (
        "buffer.py", "if not 0 < nbytes <= device.limits.max_buffer_length:", "if False:",
    ),
    "views dangle": ("buffer.py", "objc.send.retain(handle)", "handle"),
    "library's nil ignored": (
        "objc.py", "if handle := send(*arguments, error):", "if handle := send(*arguments, error) or 1:",
    ),
    "error pointer decides": (
        "objc.py", "if handle := send(*arguments, error):",
        "if (handle := send(*arguments, error)) and not error[0]:",
    ),
    "function leaks": ("library.py", "with Owned(objc, function):", "if True:"),
    "options leak": (
        "library.py", 'objc.new("MTLCompileOptions") as options',
        'Owned(objc, objc.send.retain(objc.new("MTLCompileOptions").handle)) as options',
    ),
    "fast maths": ("library.py", "api.MTLMathModeSafe)", "2)"),
    "fast functions": ("library.py", "api.MTLMathFloatingPointFunctionsPrecise)", "0)"),
    "fast maths on macOS 14": (
        "library.py", "setFastMathEnabled_(options, False)", "setFastMathEnabled_(options, True)",
    ),
    "language too new": ("library.py", "minor = 2 if system >= (15, 0)", "minor = 2 if True"),
    "maths mode on macOS 14": ("library.py", "if system >= (15, 0):", "if True:"),
    "queue leaks": (
        "device.py", "self._parts.enter_context(Owned(objc, send.newCommandQueue(handle), \"queue\"))",
        "Owned(objc, send.retain(send.newCommandQueue(handle)), \"queue\")",
    ),
    "text not terminated": (
        "objc.py", 'ffi.new("char[]", text.encode())', 'ffi.from_buffer(text.encode() + b"junk")',
    ),
    "released twice": (
        "objc.py", "            self.objc.send.release(handle)",
        "            self.objc.send.release(handle); self.objc.send.release(handle)",
    ),
    "never released": ("objc.py", "            self.objc.send.release(handle)", "            pass"),
    "pool never popped": (
        "objc.py", "            self.runtime.pop_pool(pool)\n", "            pass\n",
    ),
    "wrong width in the table": ("api.tsv", "MTLBuffer\tcontents\tinstance\t^v",
                                 "MTLBuffer\tcontents\tinstance\tQ"),
    "wrong sign in the table": ("api.tsv", "supportsFamily:\tinstance\tB\tq",
                                "supportsFamily:\tinstance\tB\tQ"),
    "replay without its buffers": (
        "replay/indirect.py", "        use(encoder, *self._buffers)", "        pass",
    ),
    "replay without its pipelines": ("replay/indirect.py", "if self._set_first:", "if False:"),
    "replay without barriers": (
        "replay/indirect.py", "            if barrier:", "            if False:",
    ),
    "replay of too little": (
        "replay/indirect.py", "(0, self.count))", "(0, self.count - 1))",
    ),
    "used buffers not in flight": (
        "replay/addresses.py", "    encoder.commands.buffers.update(buffers)\n", "",
    ),
    "pipeline not for replays": (
        "library.py", "CommandBuffers_(descriptor.handle, indirect)",
        "CommandBuffers_(descriptor.handle, False)",
    ),
    "residency set stays with the queue": (
        "replay/residency.py", "if not self._queue.closed:", "if False:",
    ),
    "missing colon": ("command.py", "commit waitUntil", "commit: waitUntil"),
    "misspelt selector": (
        "command.py", "setBuffer:offset:atIndex:", "setBuffer:atIndex:offset:",
    ),
    "message not declared": ("command.py", "status error", "status"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:when the device was released")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", MUTANTS)
def test_changed_bridge_is_caught(name: str, tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    file, old, new = MUTANTS[name]
    package = f"mutant_{list(MUTANTS).index(name)}"
    shutil.copytree(BRIDGE, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    changed = tmp_path / package / file
    text = changed.read_text(encoding="utf-8")
    assert old in text, f"{file} has no {old!r} any more: change this mutant with it"
    changed.write_text(text.replace(old, new), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BaseException) as caught, warnings.catch_warnings():
        warnings.simplefilter("error")
        scenario.run(importlib.import_module(package))
    assert not isinstance(caught.value, (SyntaxError, NameError, KeyboardInterrupt)), caught.value
    del caught
    gc.collect()  # what the broken bridge left behind complains here, and not in another test


def test_unchanged_bridge_passes() -> None:
    scenario.run(mtl)
