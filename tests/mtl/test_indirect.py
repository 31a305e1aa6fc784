"""Recorded dispatches, on every device."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.mtl.test_bridge import KERNELS
from tests.soft.fake_engine import SOURCE, FakeEngine
from tinyrvllm import mtl
from tinyrvllm.mtl.replay import IndirectCommands, ResidencySet
from tinyrvllm.soft import objc_double


def test_replay(device: mtl.Device) -> None:
    """Each replay doubles y ten times over: ten dispatches, each after the one before."""
    pipeline = device.library(KERNELS).pipeline("vector_add", indirect=True)
    n = np.array([40], np.uint32)
    with (
        device.from_numpy(np.ones(40, np.float32), "y") as y,
        device.from_numpy(n, "n") as count,
        IndirectCommands(device, capacity=10, slots=4, label="double") as program,
    ):
        buffers = [(y, 0), (y, 0), (y, 0), (count, 0)]
        for _ in range(10):
            program.record(pipeline, (2, 1, 1), (32, 1, 1), buffers)
        for replay in (1, 2):
            with device.commands() as commands, commands.encoder() as encoder:
                program.execute(encoder)
            assert commands.dispatches == 10
            assert (y.numpy(np.float32) == 1024.0**replay).all()
        count.numpy(np.uint32)[0] = 20  # the bytes in buffers may change between replays
        with device.commands() as commands, commands.encoder() as encoder:
            program.execute(encoder)
        assert y.numpy(np.float32)[[19, 20]].tolist() == [1024.0**3, 1024.0**2]
        with pytest.raises(mtl.MetalError, match="'double': expected up to 10 dispatches"):
            program.record(pipeline, (2, 1, 1), (32, 1, 1), buffers)


def test_residency_set(device: mtl.Device) -> None:
    if device.limits.os_version < (15, 0):
        pytest.skip("residency sets came with macOS 15; this system is older")
    with device.buffer(4096) as buffer, ResidencySet(device, [buffer]):
        pipeline = device.library(KERNELS).pipeline("geometry")
        with device.commands() as commands, commands.encoder() as encoder:
            encoder.dispatch(pipeline, (1, 1, 1), (64, 1, 1), [buffer])
        assert buffer.numpy(np.uint32)[3] == 64


@pytest.mark.parametrize(("family", "empty"), [(1007, [(0, 0, 0)]), (1009, [])])
def test_older_gpus_have_each_pipeline_set_first(family: int, empty: list[object]) -> None:
    """In the encoder, with an empty dispatch."""
    sent: list[tuple[str, object]] = []
    machine = objc_double.Machine(family=family)
    runtime = objc_double.metal(FakeEngine(), machine=machine, check=True)
    with mtl.Device(runtime) as device, device.buffer(64) as out:
        send = device.objc.send
        send.dispatchThreadgroups_threadsPerThreadgroup_ = spying(
            "dispatch", send.dispatchThreadgroups_threadsPerThreadgroup_, sent
        )
        pipeline = device.library_from_source(SOURCE).pipeline("geometry", indirect=True)
        with IndirectCommands(device, 1, 1) as program:
            program.record(pipeline, (2, 1, 1), (8, 1, 1), [(out, 0)])
            with device.commands() as commands, commands.encoder() as encoder:
                program.execute(encoder)
        assert out.numpy(np.uint32)[:4].tolist() == [16, 1, 1, 8]
        assert [threads for _, threads in sent] == empty


def test_residency_sets_are_refused_before_macos_15() -> None:
    machine = objc_double.Machine(os_version=(14, 5))
    with (
        mtl.Device(objc_double.metal(FakeEngine(), machine=machine)) as device,
        device.buffer(16) as buffer,
        pytest.raises(mtl.MetalError, match="macOS 15"),
    ):
        ResidencySet(device, [buffer])


def test_a_command_may_be_asked_for_again(device: mtl.Device) -> None:
    """It belongs to its buffer: what the pool gives back is the reference of one message."""
    with IndirectCommands(device, capacity=1, slots=1) as program:
        for _ in range(3):
            with device.objc.pool():
                send = device.objc.send
                send.setBarrier(send.indirectComputeCommandAtIndex_(program.handle, 0))


def spying(
    name: str, send: Callable[..., Any], sent: list[tuple[str, object]]
) -> Callable[..., Any]:
    """A send that also notes down its name and last argument."""

    def spy(*values: object) -> Any:
        sent.append((name, values[-1]))
        return send(*values)

    return spy


def test_what_a_device_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the double does not act on, and a GPU does."""
    with (
        mtl.Device(objc_double.metal(FakeEngine(), check=True)) as device,
        device.buffer(64) as out,
    ):
        sent: list[tuple[str, object]] = []
        for name in (
            "newIndirectCommandBufferWithDescriptor_maxCommandCount_options_",
            "requestResidency", "computeCommandEncoderWithDispatchType_",
            "useResources_count_usage_", "endResidency",
        ):  # fmt: skip
            spy = spying(name, getattr(device.objc.send, name), sent)
            monkeypatch.setattr(device.objc.send, name, spy)
        pipeline = device.library_from_source(SOURCE).pipeline("geometry", indirect=True)
        with IndirectCommands(device, 1, 1) as program, ResidencySet(device, [out]) as resident:
            with pytest.raises(mtl.MetalError, match="threads"):
                program.record(pipeline, (1, 1, 1), (2048, 1, 1), [(out, 0)])
            program.record(pipeline, (2, 1, 1), (8, 1, 1), [(out, 0)])
            with device.commands() as commands, commands.encoder() as encoder:
                program.execute(encoder)
            handle = resident.handle
        assert sent == [
            ("newIndirectCommandBufferWithDescriptor_maxCommandCount_options_", 0),
            ("requestResidency", handle),
            ("computeCommandEncoderWithDispatchType_", 0),  # serial, unless it is asked otherwise
            ("useResources_count_usage_", 3),  # read and write
            ("endResidency", handle),
        ]
