"""Dispatches recorded once and sent again: the bits of an encoder, and few messages."""

import numpy as np
import pytest

from tests.mtl.test_bridge import KERNELS
from tinyrvllm import mtl
from tinyrvllm.mtl.recording import Recording
from tinyrvllm.soft.objc_double import MTLComputeCommandEncoder


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
            with device.commands() as commands, commands.encoder(concurrent=True) as encoder:
                recording.execute(encoder)
            assert commands.dispatches == 4
            sums = expected_a + 2 * expected_b
            expected_a, expected_b[20:] = 2 * sums, 2 * sums[:20]
            np.testing.assert_array_equal(a.numpy(np.float32), expected_a)
            np.testing.assert_array_equal(b.numpy(np.float32), expected_b)


def test_only_what_changes_is_set_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bindings and pipelines last until they change or the encoder ends."""
    sent: list[tuple[str, object]] = []
    for name in ("set_pipeline", "set_buffer", "barrier", "dispatch_groups"):
        original = getattr(MTLComputeCommandEncoder, name)

        def noted(self: object, *given: object, name: str = name, original: object = original) -> None:
            sent.append((name, given[-1]))
            original(self, *given)  # type: ignore[operator]

        noted.selector = original.selector
        monkeypatch.setattr(MTLComputeCommandEncoder, name, noted)
    with mtl.open_device("soft") as device, device.buffer(160) as a, device.buffer(160) as b:
        pipeline = device.library(KERNELS).pipeline("vector_add")
        with device.from_numpy(np.array([40], np.uint32)) as n:
            recording = Recording(device)
            for x, barrier in (((a, 0), False), ((b, 0), True), ((b, 0), True)):
                recording.record(
                    pipeline, (2, 1, 1), (32, 1, 1), [x, (a, 0), (a, 0), (n, 0)], barrier
                )
            for _ in range(2):
                sent.clear()
                with device.commands() as commands, commands.encoder(concurrent=True) as encoder:
                    recording.execute(encoder)
                assert [name for name, _ in sent] == [
                    "set_pipeline", *["set_buffer"] * 4, "dispatch_groups",
                    "barrier", "set_buffer", "dispatch_groups", "barrier", "dispatch_groups",
                ]  # fmt: skip
                assert [slot for name, slot in sent if name == "set_buffer"] == [0, 1, 2, 3, 0]
