"""Parts of a work that threads share."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tinyrvllm.model import threads
from tinyrvllm.model.threads import share

FORKS = """
import os
from tinyrvllm.model.threads import share
done = []
share(done.append, range(100))
assert sorted(done) == list(range(100)), done
child = os.fork()
if child == 0:
    done = []
    share(done.append, range(100))
    os._exit(sorted(done) != list(range(100)))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_each_part_is_worked_on_once(count: int) -> None:
    done: list[int] = []
    share(done.append, range(count))
    assert sorted(done) == list(range(count))


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    threads._helpers.cache_clear()
    yield
    threads._helpers.cache_clear()


@pytest.mark.usefixtures("two_cores")
def test_threads_work_side_by_side() -> None:
    """Each part waits for the other: one thread alone would never end."""
    both = threading.Barrier(2, timeout=300)
    share(lambda _: both.wait(), [0, 1])


@pytest.mark.usefixtures("two_cores")
def test_nobody_waits_for_a_thread_that_comes_late() -> None:
    """The other one is kept busy until the first call has returned."""
    done: list[int] = []
    busy, go_on = threading.Event(), threading.Event()

    def dawdle() -> None:
        busy.set()
        go_on.wait(300)

    calls, _ = threads._helpers()
    calls.put(dawdle)
    assert busy.wait(300)
    for _ in range(3):
        share(done.append, [0, 1, 2])
    assert calls.qsize() <= 1  # calls that nobody answers do not pile up
    assert done == [0, 1, 2] * 3
    go_on.set()


def test_the_first_error_is_raised_when_all_has_ended() -> None:
    done = []

    def work(part: int) -> None:
        done.append(part)
        if part % 2:
            raise ValueError(f"part {part}")

    with pytest.raises(ValueError, match="part"):
        share(work, range(10))
    assert sorted(done) == list(range(10))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_has_threads_of_its_own() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKS]
    subprocess.run(command, check=True, timeout=300)
