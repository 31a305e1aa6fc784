"""Hazards of a concurrent encoder by the bytes that compiled kernels really touch."""

from collections.abc import Iterator

import numpy as np
import pytest

from tests.mtl.test_bridge import KERNELS
from tinyrvllm import mtl
from tinyrvllm.soft.objc_double.hazards import clip, overlap


@pytest.fixture
def device() -> Iterator[mtl.Device]:
    with mtl.open_device("soft:check") as opened:
        yield opened


def _add(device: mtl.Device, *calls: tuple, n: int = 32) -> None:
    """Runs c = a + b for each call, all in one concurrent encoder with no barrier."""
    pipeline = device.library(KERNELS).pipeline("vector_add")
    with device.commands() as commands, commands.encoder(concurrent=True) as encoder:
        for buffers in calls:
            encoder.dispatch(pipeline, (1, 1, 1), (32, 1, 1), buffers, np.uint32(n).tobytes())


def test_parts_of_one_buffer_are_apart(device: mtl.Device) -> None:
    """Both are bound to its end, and each touches its own 128 bytes."""
    with device.from_numpy(np.ones(64, np.float32)) as one, device.buffer(1024) as arena:
        _add(device, (one, one, (arena, 0)), (one, one, (arena, 128)))
        _add(device, ((arena, 0), one, (arena, 256)), ((arena, 128), one, (arena, 384)))
        assert (arena.numpy(np.float32, (32,), offset=384) == 3).all()


def test_one_shared_byte_is_enough(device: mtl.Device) -> None:
    with device.from_numpy(np.ones(64, np.float32)) as one, device.buffer(1024, "arena") as arena:
        with pytest.raises(mtl.MetalError, match="bytes 124 to 127 of MTLBuffer 'arena'"):
            _add(device, (one, one, (arena, 0)), (one, one, (arena, 124)))
        with pytest.raises(mtl.MetalError, match="writes bytes 0 to 127.*reads them"):
            _add(device, (one, one, arena), (arena, one, (arena, 256)))
        with pytest.raises(mtl.MetalError, match="reads bytes 0 to 127.*writes them"):
            _add(device, (arena, one, (arena, 256)), (one, one, arena))


def test_what_a_kernel_skips_is_no_conflict(device: mtl.Device) -> None:
    """Threads past n touch nothing, whatever is bound."""
    with device.from_numpy(np.ones(64, np.float32)) as one, device.buffer(1024) as arena:
        _add(device, (one, one, (arena, 0)), (one, one, (arena, 124)), n=31)


def test_serial_encoders_need_no_barrier(device: mtl.Device) -> None:
    pipeline = device.library(KERNELS).pipeline("vector_add")
    with device.from_numpy(np.ones(32, np.float32)) as x, device.commands() as commands:
        for _ in range(2):  # nor do two encoders of one command buffer
            with commands.encoder() as encoder:
                for _ in range(2):
                    n = np.uint32(32).tobytes()
                    encoder.dispatch(pipeline, (1, 1, 1), (32, 1, 1), (x, x, x), n)
        commands.commit()
        commands.wait()
        assert (x.numpy(np.float32) == 16).all()


def test_ranges() -> None:
    assert clip([(0, 10), (20, 30)], (5, 25)) == [(5, 10), (20, 25)]
    assert clip([(0, 5), (9, 12)], (5, 9)) == []
    assert overlap([(0, 10), (20, 30)], [(10, 20), (29, 40)]) == (29, 30)
    assert overlap([(0, 10)], [(10, 20)]) is None
