"""Lesson 14: which tokens a step takes, and which blocks are there already."""

import hashlib
from typing import Any

import numpy as np

from lessons.host import Recording
from lessons.python_trace import compare
from lessons.spec import HostTask


def check_step(function: Any, recording: Recording) -> None:
    cases: dict[str, tuple[list[tuple[str, int]], list[tuple[str, int]], int]] = {
        "nothing to do": ([], [], 16),
        "three decode": ([("a", 1), ("b", 1), ("c", 1)], [], 16),
        "a prompt joins those that decode": ([("a", 1), ("b", 1)], [("c", 9)], 16),
        "a long prompt gets what is left": ([("a", 1), ("b", 1)], [("c", 40)], 16),
        "a prompt in the middle, and one that decodes": ([("long", 30), ("b", 1)], [], 16),
        "nothing is left for the last": ([("a", 1)], [("b", 15), ("c", 5)], 16),
        "a budget smaller than those that decode": ([("a", 1), ("b", 1), ("c", 1)], [("d", 4)], 2),
        "first come, first served": ([], [("long", 20), ("short", 2)], 16),
    }
    rng = np.random.default_rng(7)
    for number in range(20):
        pending = [int(n) for n in rng.choice([1, 1, 3, 20], rng.integers(0, 5))]
        prompts = [int(n) for n in rng.integers(2, 30, rng.integers(0, 4))]
        cases[f"random, number {number}"] = (
            [(f"r{n}", count) for n, count in enumerate(pending)],
            [(f"w{n}", count) for n, count in enumerate(prompts)],
            int(rng.integers(1, 40)),
        )
    for title, (running, waiting, budget) in cases.items():
        compare(TASKS[0], function, recording, title, running, waiting, budget)


def digest(parent: str, tokens: list[int]) -> str:
    """A short name for some tokens that follow what `parent` names."""
    return hashlib.sha256(f"{parent} {tokens}".encode()).hexdigest()[:12]


def check_prefix(function: Any, recording: Recording) -> None:
    rng = np.random.default_rng(7)
    text = [int(n) for n in rng.integers(0, 100, 40)]
    cache = blocks_of(text, 4, first=30)
    other = [*text[:6], 999, *text[7:]]
    repeated = text[:4] * 5  # the same tokens in every block: only their places differ
    cases = {
        "an empty cache": (text, 4, {}),
        "the whole text is there, but its last token": (text, 4, cache),
        "a longer text": ([*text, 1, 2, 3], 4, cache),
        "the first block only": (other, 4, cache),
        "a shorter text, that ends inside a block": (text[:11], 4, cache),
        "a text that ends with a block": (text[:12], 4, cache),
        "shorter than a block": (text[:3], 4, cache),
        "its later blocks are there, its first is not": ([5, *text[1:]], 4, cache),
        "a block repeats": (repeated, 4, blocks_of(text[:4], 4, first=7)),
        "other blocks are missing in between": (
            text,
            4,
            {k: b for k, b in cache.items() if b != 32},
        ),
    }
    for title, (ids, size, known) in cases.items():
        compare(TASKS[1], function, recording, title, ids, size, known, digest)


def blocks_of(ids: list[int], size: int, first: int) -> dict[str, int]:
    """A cache that holds the whole blocks of a text, in blocks first, first + 1, ..."""
    known, parent = {}, ""
    for number in range(len(ids) // size):
        parent = digest(parent, ids[number * size : (number + 1) * size])
        known[parent] = first + number
    return known


TASKS = [
    HostTask("14", "step", "step", lambda _: [], check=check_step),
    HostTask("14", "prefix", "prefix", lambda _: [], check=check_prefix),
]
