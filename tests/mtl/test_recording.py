"""Dispatches recorded once and sent again: the bits of an encoder, and few messages."""

import numpy as np
import pytest

from tests.mtl.test_bridge import KERNELS
from tinyrvllm import mtl
from tinyrvllm.mtl.replay import Recording
from tinyrvllm.soft.objc_double import MTLComputeCommandEncoder, ObjCError


def test_replay(device: mtl.Device) -> None:
    """a + b -> c, c + b -> c, and c + c -> a: each replay goes on from the one before."""
    pipeline = device.library(KERNELS).pipeline("vector_add")
    start = np.arange(40, dtype=np.float32)
    recording = Recording(device, "sums")
    with (
        device.from_numpy(start, "a") as a,
        device.from_numpy(np.ones(40, np.float32), "b") as b,
        device.buffer(160, "c") as c,
        device.from_numpy(np.array([40, 0, 0, 0, 20], np.uint32), "n") as n,
    ):
        for x, y, z in ((a, b, c), (c, b, c), (c, c, a)):
            buffers = [(x, 0), (y, 0), (z, 0), (n, 0)]
            recording.record(pipeline, (2, 1, 1), (32, 1, 1), buffers)
        recording.record(pipeline, (1, 1, 1), (32, 1, 1), [(c, 0), (c, 0), (b, 80), (n, 16)])
        expected_a, expected_b = start, np.ones(40, np.float32)
        for _ in range(2):
            with device.commands() as commands:
                with commands.encoder(concurrent=True) as encoder:
                    recording.execute(encoder)
                commands.commit()
                with pytest.raises(mtl.MetalError, match="'c' is in use by 1 committed"):
                    c.numpy()
            assert commands.dispatches == 4
            sums = expected_a + 2 * expected_b
            expected_a, expected_b[20:] = 2 * sums, 2 * sums[:20]
            np.testing.assert_array_equal(a.numpy(np.float32), expected_a)
            np.testing.assert_array_equal(b.numpy(np.float32), expected_b)


def test_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most three for each dispatch and one for each barrier; a pipeline is set when it changes."""
    sent: list[str] = []
    for name in ("set_pipeline", "set_buffers", "barrier", "dispatch_groups"):
        original = getattr(MTLComputeCommandEncoder, name)

        def noted(self: object, *given: object, name: str = name, original: object = original) -> None:
            sent.append(name)
            original(self, *given)  # type: ignore[operator]

        monkeypatch.setattr(MTLComputeCommandEncoder, name, noted)
    with mtl.open_device("soft") as device, device.buffer(160) as a, device.buffer(160) as n:
        library = device.library(KERNELS)
        add, geometry = library.pipeline("vector_add"), library.pipeline("geometry")
        recording = Recording(device)
        sums = [(a, 0), (a, 0), (a, 0), (n, 0)]
        recording.record(add, (2, 1, 1), (32, 1, 1), sums, barrier=False)
        recording.record(add, (2, 1, 1), (32, 1, 1), sums)
        recording.record(geometry, (1, 1, 1), (32, 1, 1), [(a, 0)])
        for _ in range(2):
            sent.clear()
            with device.commands() as commands, commands.encoder(concurrent=True) as encoder:
                recording.execute(encoder)
            assert sent == [
                "set_pipeline", "set_buffers", "dispatch_groups",
                "barrier", "set_buffers", "dispatch_groups",
                "barrier", "set_pipeline", "set_buffers", "dispatch_groups",
            ]  # fmt: skip


def test_numbers_that_do_not_fit_are_refused() -> None:
    with mtl.open_device("soft") as device, device.buffer(160) as a:
        recording = Recording(device)
        geometry = device.library(KERNELS).pipeline("geometry")
        recording.record(geometry, (1 << 64, 1, 1), (1, 1, 1), [(a, 0)])
        commands = device.commands()
        takes = "dispatchThreadgroups:threadsPerThreadgroup: takes"
        with pytest.raises(ObjCError, match=takes), commands, commands.encoder() as encoder:
            recording.execute(encoder)
        with pytest.raises(OverflowError):
            recording.record(geometry, (1, 1, 1), (1, 1, 1), [(a, -1)])
        with pytest.raises(mtl.MetalError, match="1 to 64 threads in a threadgroup"):
            recording.record(geometry, (1, 1, 1), (65, 1, 1), [(a, 0)])
