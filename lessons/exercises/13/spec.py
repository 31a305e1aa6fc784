"""Lesson 13: where a program needs barriers."""

from typing import Any

import numpy as np

from lessons.exercises.dispatches import Dispatch, Span
from lessons.host import Recording
from lessons.python_trace import compare
from lessons.spec import HostTask


def layer() -> list[Dispatch]:
    """A layer of a model, as lesson 13 shows it; Q, K and V write parts of one buffer."""
    x, qkv, cache, mixed, feed = "x", "qkv", "cache", "mixed", "feed"

    def whole(buffer: str) -> Span:
        return Span(buffer, 0, 300)

    return [
        Dispatch("q", (whole(x),), (Span(qkv, 0, 100),)),
        Dispatch("k", (whole(x),), (Span(qkv, 100, 200),)),
        Dispatch("v", (whole(x),), (Span(qkv, 200, 300),)),
        Dispatch("rope", (Span(qkv, 0, 300),), (Span(qkv, 0, 100), whole(cache))),
        Dispatch("attention", (Span(qkv, 0, 100), whole(cache)), (whole(mixed),)),
        Dispatch("output", (whole(mixed), whole(x)), (whole(x),)),
        Dispatch("gate", (whole(x),), (Span(feed, 0, 150),)),
        Dispatch("up", (whole(x),), (Span(feed, 150, 300),)),
        Dispatch("down", (Span(feed, 0, 300), whole(x)), (whole(x),)),
        Dispatch("next q", (whole(x),), (Span(qkv, 0, 100),)),
        Dispatch("next k", (whole(x),), (Span(qkv, 100, 200),)),
    ]


def random_program(rng: np.random.Generator) -> list[Dispatch]:
    def spans() -> tuple[Span, ...]:
        made = []
        for _ in range(rng.integers(1, 3)):
            first = int(rng.integers(0, 8)) * 10
            made.append(Span("abc"[rng.integers(3)], first, first + int(rng.integers(1, 4)) * 10))
        return tuple(made)

    return [Dispatch(str(n), spans(), spans()) for n in range(int(rng.integers(3, 12)))]


def check(function: Any, recording: Recording) -> None:
    a, b, c = (Span(name, 0, 10) for name in "abc")
    cases = {
        "no dispatches": [],
        "one reads what the other wrote": [Dispatch("1", (a,), (b,)), Dispatch("2", (b,), (c,))],
        "one writes what the other reads": [Dispatch("1", (a,), (b,)), Dispatch("2", (c,), (a,))],
        "both write the same": [Dispatch("1", (a,), (c,)), Dispatch("2", (b,), (c,))],
        "both read the same": [Dispatch("1", (a,), (b,)), Dispatch("2", (a,), (c,))],
        "a layer of a model": layer(),
    }
    rng = np.random.default_rng(7)
    cases |= {f"a random program, number {n}": random_program(rng) for n in range(20)}
    for title, dispatches in cases.items():
        compare(TASKS[0], function, recording, title, dispatches)


TASKS = [HostTask("13", "phases", "phases", lambda _: [], check=check)]
