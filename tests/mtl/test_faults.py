"""Everything that can fail does, one thing at a time: an error says so, and nothing is left over."""

import contextlib
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.soft.fake_engine import SOURCE, FakeEngine, scarce
from tinyrvllm import mtl
from tinyrvllm.mtl.replay import IndirectCommands, ResidencySet
from tinyrvllm.soft import objc_double
from tinyrvllm.soft.objc_double.engine import CompileError
from tinyrvllm.soft.objc_double.foundation import NSError
from tinyrvllm.soft.objc_double.metal_commands import MTLCommandBuffer

# When Ctrl-C comes just as one of these returns, Python cannot know that there is an encoder, or
# that it is ended.
ENCODER = ("computeCommandEncoderWithDispatchType:", "endEncoding")


class CountingRuntime:
    """The double, with something that happens before or after message number `when`."""

    def __init__(self, runtime: objc_double.SoftRuntime, when: int, after: bool) -> None:
        self._runtime, self._when, self._after = runtime, when, after
        self.sent = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def bind(self, selector: str, returns: str, arguments: tuple[str, ...]) -> Callable[..., Any]:
        send = self._runtime.bind(selector, returns, arguments)

        def counted(receiver: Any, *values: Any) -> Any:
            self.sent += 1
            now = self.sent == self._when
            if now and not self._after:
                raise KeyboardInterrupt
            result = send(receiver, *values)
            if now and selector not in ENCODER:
                raise KeyboardInterrupt
            return result

        return counted


def use_everything(device: mtl.Device) -> None:
    """One of each object, and a result."""
    x = np.arange(16, dtype=np.float32)
    library = device.library_from_source(SOURCE, "fake.metal")
    scale = library.pipeline("scale", {"FACTOR": 3.0})
    add = library.pipeline("vector_add", indirect=True)
    with device.from_numpy(x, "x") as a, device.buffer(64, "out") as out, device.buffer(4) as n:
        n.numpy(np.uint32)[:] = 16
        with device.commands("scale") as commands, commands.encoder() as encoder:
            encoder.dispatch(scale, (1, 1, 1), (16, 1, 1), [a, out])
        assert np.array_equal(out.numpy(np.float32), x * 3)
        with IndirectCommands(device, 1, 4, "sum") as program, ResidencySet(device, [a]):
            program.record(add, (1, 1, 1), (16, 1, 1), [(a, 0), (out, 0), (out, 0), (n, 0)])
            with device.commands() as commands, commands.encoder(concurrent=True) as encoder:
                program.execute(encoder)
                encoder.barrier()
                encoder.dispatch(add, (1, 1, 1), (16, 1, 1), [a, out, out], n.numpy().tobytes())
        assert np.array_equal(out.numpy(np.float32), x * 5)


def nothing_is_left(runtime: objc_double.SoftRuntime) -> None:
    gc.collect()
    assert runtime.leaks() == [] and runtime.faults == [] and runtime.pools == []


def messages() -> int:
    """How many messages `use_everything` sends, opening and closing the device included."""
    runtime = objc_double.metal(FakeEngine(), check=True)
    counting = CountingRuntime(runtime, 0, False)
    with mtl.Device(counting) as device:  # type: ignore[arg-type]
        use_everything(device)
    nothing_is_left(runtime)
    return counting.sent


@pytest.mark.filterwarnings("ignore:when the device was released")  # what a message just made
@pytest.mark.filterwarnings(
    "ignore:(?s).*Owned.__del__.*KeyboardInterrupt:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_ctrl_c_at_every_message(after: bool) -> None:
    """Interrupted between any two messages, the program leaves blocks in order: encoders are ended,
    work that was committed is waited for, and each object is released once."""
    runtimes = []
    for when in range(1, messages() + 1):
        runtime = objc_double.metal(FakeEngine(), check=True)
        runtimes.append(runtime)
        counting = CountingRuntime(runtime, when, after)
        with contextlib.suppress(KeyboardInterrupt), mtl.Device(counting) as device:  # type: ignore[arg-type]
            use_everything(device)
        assert counting.sent >= when
    gc.collect()
    for when, runtime in enumerate(runtimes, 1):
        assert runtime.faults == [] and runtime.pools == [], f"at message {when}"


def test_out_of_memory_at_each_allocation() -> None:
    enough = scarce(FakeEngine(), 0)
    with mtl.Device(objc_double.metal(enough)) as device:
        use_everything(device)
    assert enough.count >= 4  # x, out, n and the constants of setBytes
    for when in range(1, enough.count + 1):
        runtime = objc_double.metal(scarce(FakeEngine(), when), check=True)
        with mtl.Device(runtime) as device:
            with pytest.raises((mtl.MetalError, MemoryError)) as failure:
                use_everything(device)
            if isinstance(failure.value, mtl.MetalError):
                assert "Metal has no room for" in str(failure.value)
            del failure
            use_everything(device)  # and all is well once there is room
        nothing_is_left(runtime)


@pytest.mark.parametrize("status", [0, 1, 2, 3, 5])  # all but completed
def test_a_command_buffer_that_ends_with_another_status(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = objc_double.metal(FakeEngine(), check=True)
    ended = [status, 4]  # the status of the first command buffer, and of the second
    monkeypatch.setattr(MTLCommandBuffer, "status", lambda self: ended.pop(0))
    monkeypatch.setattr(
        MTLCommandBuffer, "error", lambda self: NSError(self.runtime, "GPU lost").autorelease()
    )
    with mtl.Device(runtime) as device, device.buffer(64) as out:
        geometry = device.library_from_source(SOURCE).pipeline("geometry")
        failure = pytest.raises(mtl.MetalError, match="command buffer 'work' failed: GPU lost")
        with failure, device.commands("work") as commands, commands.encoder() as encoder:
            encoder.dispatch(geometry, (1, 1, 1), (1, 1, 1), [out])
        assert not out.in_flight and commands.closed
        with device.commands() as commands, commands.encoder() as encoder:
            encoder.dispatch(geometry, (2, 1, 1), (1, 1, 1), [out])
        assert out.numpy(np.uint32)[0] == 2
    nothing_is_left(runtime)


def test_a_failure_without_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = objc_double.metal(FakeEngine(), check=True)
    monkeypatch.setattr(MTLCommandBuffer, "status", lambda self: 5)
    with mtl.Device(runtime) as device, device.commands("work") as commands:
        commands.commit()
        with pytest.raises(mtl.MetalError, match="'work' failed: Metal gave no reason"):
            commands.wait()
    nothing_is_left(runtime)


class RefusingEngine(FakeEngine):
    """Compiles no library, or no kernel."""

    def __init__(self, step: str) -> None:
        super().__init__()
        self.step = step

    def compile(self, source: str) -> Any:
        if self.step == "library":
            raise CompileError("fake.metal:7:1: error: expected ';'")
        return super().compile(source)

    def kernel(self, library: Any, name: str, constants: Any) -> Any:
        if self.step == "pipeline":
            raise CompileError("compiler ran out of registers")
        return super().kernel(library, name, constants)


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ("library", "fake.metal does not compile:\nfake.metal:7:1: error: expected ';'"),
        ("pipeline", "fake.metal: kernel 'scale': compiler ran out of registers"),
    ],
)
def test_what_does_not_compile(step: str, says: str) -> None:
    engine = RefusingEngine(step)
    runtime = objc_double.metal(engine, check=True)
    with mtl.Device(runtime) as device:
        with pytest.raises(mtl.MetalError) as failure:
            use_everything(device)
        assert says in str(failure.value)
        del failure
        engine.step = ""
        use_everything(device)  # the failure is not remembered
    nothing_is_left(runtime)
