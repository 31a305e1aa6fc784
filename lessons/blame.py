"""Which line a wrong value comes from: a thread's steps beside what a specification says."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lessons.spec import Case, Thread, Watched
from tinyrvllm.soft.cpu.following import Event


@dataclass(frozen=True)
class Blame:
    """A variable that is not as specified."""

    rank: int  # of the variable: `watched` lists causes before their consequences
    line: int
    text: str


def blame(
    events: list[Event], thread: Thread, case: Case, relative: float, whole: bool = False
) -> Blame | None:
    """The first assignment of a thread that leaves the specification.

    whole: only those of whole numbers, and not that some are missing: the thread did not finish.
    """
    found: list[tuple[int, Blame]] = []
    for rank, (name, value) in enumerate(case.watched(thread).items()):
        assigned = [i for i, event in enumerate(events) if event.label == name]
        if whole:
            assigned = [i for i in assigned if isinstance(events[i].value[0], int)]
        elif isinstance(value, np.ndarray) and 0 < len(assigned) < value.size:
            text = f"{name} is assigned {len(assigned)} times, expected {value.size}, in {thread}"
            found.append((assigned[0], Blame(rank, events[assigned[0]].line, text)))
        for i, allowed, verb in expectations(value, assigned, events):
            is_ = events[i].value[0]
            if not np.isclose(is_, allowed, rtol=relative, atol=1e-7, equal_nan=True).any():
                wants = " or ".join(f"{v:.6g}" for v in dict.fromkeys(allowed))
                text = f"{name} {verb} {is_:.6g}, expected {wants}, in {thread}"
                found.append((i, Blame(rank, events[i].line, text)))
                break
    return min(found, key=lambda pair: pair[0])[1] if found else None


def expectations(
    value: Watched, assigned: list[int], events: list[Event]
) -> Iterator[tuple[int, list[float], str]]:
    """(event, values allowed there, verb) for one variable and the events that assign it."""
    if not assigned:
        return
    if isinstance(value, tuple):
        first, value = value
        yield assigned[0], list(first), "starts as"
    if not isinstance(value, np.ndarray):
        yield assigned[-1], [value], "is"
        return
    # Where it is declared again and again, each time it has one last value.
    declared = events[assigned[0]].line
    starts = [k for k, i in enumerate(assigned) if events[i].line == declared]
    last = [assigned[k - 1] for k in [*starts[1:], len(assigned)]]
    each = last if len(last) == value.size else assigned
    for i, wants in zip(each, value.reshape(-1).tolist(), strict=False):
        yield i, [wants], "is"
