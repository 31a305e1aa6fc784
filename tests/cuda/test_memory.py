"""Metal's shared memory on two memories: what the host writes and reads, and when it is copied."""

from tests.cuda import gpu

gpu.require()

from collections.abc import Iterator

import numpy as np
import pytest

from tinyrvllm import mtl
from tinyrvllm.kernels import elementwise
from tinyrvllm.kernels.launch import run, whole
from tinyrvllm.soft.cuda.memory import SMALL

COUNTS = [1000, SMALL // 4 + 5]  # floats: a small buffer and a large one


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Bytes that crossed, counted."""
    from tinyrvllm.soft.cuda.driver import Card

    counted = {"upload": 0, "download": 0}
    for name in counted:
        real = getattr(Card, name)

        def count(card: Card, a: int, b: int, n: int, what: tuple = (name, real)) -> None:
            counted[what[0]] += n
            what[1](card, a, b, n)

        monkeypatch.setattr(Card, name, count)
    yield counted


@pytest.mark.parametrize("count", COUNTS)
def test_writes_reach_the_card_and_results_come_back(device: mtl.Device, count: int) -> None:
    a, b, y = (device.buffer(4 * count) for _ in range(3))
    for number in (1.0, 2.0, 5.0):
        a.numpy(np.float32)[:] = number
        b.numpy(np.float32)[:] = np.arange(count)
        run(device, elementwise.add(whole(a), whole(b), whole(y), count))
        np.testing.assert_array_equal(y.numpy(np.float32), np.arange(count, dtype="f4") + number)


def test_a_view_that_is_kept_stays_true_for_small_buffers(device: mtl.Device) -> None:
    a, y = device.buffer(4000), device.buffer(4000)
    written, read = a.numpy(np.float32), y.numpy(np.float32)
    for number in (1.0, 3.0):
        written[:] = number
        run(device, elementwise.copy(whole(a), whole(y), 1000))
        assert (read == number).all()


def test_both_sides_write_one_buffer(device: mtl.Device) -> None:
    """The host changes some elements between two runs of a kernel that changes all."""
    x, one = device.buffer(4000), device.from_numpy(np.ones(1000, np.float32))
    expected = np.zeros(1000, np.float32)
    for number in range(5):
        x.numpy(np.float32)[number::7] = 10 * number
        expected[number::7] = 10 * number
        run(device, elementwise.add(whole(x), whole(one), whole(x), 1000))
        expected += 1
        np.testing.assert_array_equal(x.numpy(np.float32), expected)


def test_what_nobody_looks_at_is_not_copied(device: mtl.Device, copies: dict[str, int]) -> None:
    count = SMALL
    a, b, y = (device.buffer(4 * count) for _ in range(3))
    run(device, elementwise.add(whole(a), whole(b), whole(y), count))
    run(device, elementwise.add(whole(y), whole(b), whole(a), count))
    assert copies["upload"] < 1000  # the counts
    assert copies["download"] == 0
    assert not a.numpy(np.float32).any()
    assert copies["download"] == 4 * count


def test_unchanged_buffers_are_not_copied_again(device: mtl.Device, copies: dict[str, int]) -> None:
    a, y = device.from_numpy(np.ones(100_000, np.float32)), device.buffer(400_000)
    for _ in range(3):
        run(device, elementwise.copy(whole(a), whole(y), 100_000))
    assert 400_000 <= copies["upload"] < 401_000


def test_work_in_flight_sees_the_bytes_of_its_commit(device: mtl.Device) -> None:
    pipeline = device.library("elementwise").pipeline("copy")
    n = np.uint32(1000).tobytes()
    a, results = device.buffer(4000), [device.buffer(4000) for _ in range(8)]
    running = []
    for number, y in enumerate(results):
        x = device.from_numpy(np.full(1000, number, np.float32))
        commands = device.commands()
        with commands.encoder() as encoder:
            encoder.dispatch(pipeline, (4, 1, 1), (256, 1, 1), [x, y], n)
        commands.commit()
        running.append(commands)
    for number, (commands, y) in enumerate(zip(running, results, strict=True)):
        commands.wait()
        assert (y.numpy(np.float32) == number).all()
    a.close()


def test_difference() -> None:
    from tinyrvllm.soft.cuda.memory import _difference

    a = np.zeros(1003, np.uint8)
    b = a.copy()
    assert _difference(a, b)[0] >= _difference(a, b)[1]
    b[900] = 1
    first, last = _difference(a, b)
    assert first <= 900 < last <= 1003
    b[1002] = 1
    assert _difference(a, b)[1] == 1003
    b[:] = 0
    b[0] = 1
    assert _difference(a, b) == (0, 8)
