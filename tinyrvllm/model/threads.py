"""Threads for numpy, which gives up the interpreter while it computes."""

import os
from collections.abc import Callable, Sequence
from functools import cache
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def share(work: Callable[[T], R], parts: Sequence[T]) -> list[R]:
    """[work(part) for part in parts], by this thread and by others, one for each core.

    Each takes the next part when it is through with its last. Others that come late, on a busy
    machine or because their processors slept, find fewer parts left, or none, and nobody waits for
    them: at worst this thread does everything. Raises the first error after the last part's end.
    """
    if len(parts) == 1:
        return [work(parts[0])]
    left = iter(enumerate(parts))
    results: dict[int, R] = {}
    ended: SimpleQueue[BaseException | None] = SimpleQueue()

    def take() -> None:
        for number, part in left:
            try:
                results[number] = work(part)
            except BaseException as error:  # noqa: BLE001 - raised below, in the thread that asked
                ended.put(error)
            else:
                ended.put(None)

    calls, helpers = _helpers()
    for _ in range(min(len(parts) - 1, helpers) - calls.qsize()):
        calls.put(take)
    take()
    errors = [error for error in (ended.get() for _ in parts) if error]
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(parts))]


@cache
def _helpers() -> "tuple[SimpleQueue[Callable[[], None]], int]":
    """Where a thread for each further core waits for something to call, and how many these are."""
    calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
    helpers = (os.cpu_count() or 1) - 1  # asked once: Linux reads a file for it

    def help_for_ever() -> None:
        while True:
            calls.get()()

    for _ in range(helpers):
        Thread(target=help_for_ever, name="numpy", daemon=True).start()
    return calls, helpers


if hasattr(os, "register_at_fork"):  # a forked child has none of its parent's threads
    os.register_at_fork(after_in_child=_helpers.cache_clear)
