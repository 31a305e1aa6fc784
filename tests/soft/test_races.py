"""The checker's verdicts on random scripts of accesses, against the definition of a data race."""

import itertools
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tinyrvllm.soft.cpu.execute import Dispatch, run
from tinyrvllm.soft.cpu.library import SoftKernel, compile_library

READ, WRITE, ATOMIC_READ, ATOMIC_ADD, BARRIER, SIMDGROUP_BARRIER = range(1, 7)
GROUPS, THREADS, STEPS = 2, 64, 6
PLACES = [(at, size) for size in (1, 2, 4) for at in range(0, 8, size)]


@dataclass(frozen=True)
class Access:
    group: int
    thread: int
    step: int
    action: int
    at: int  # byte
    size: int
    shared: bool  # in threadgroup memory, else in device memory


@dataclass(frozen=True)
class Barrier:
    group: int
    step: int
    simdgroup: int | None  # None: a threadgroup_barrier
    shared: bool  # the memory that it orders


@pytest.fixture(scope="module")
def interpret() -> SoftKernel:
    path = Path(__file__).parent / "script.metal"
    return compile_library(path.read_text(), filename=path.name, check=True).kernel("interpret")


def script(rng: random.Random) -> tuple[list[Access], list[Barrier]]:
    """A few accesses by few threads to few bytes; barriers in steps of their own."""
    barriers, accesses, taken = [], [], set()
    for group, step in itertools.product(range(GROUPS), range(1, STEPS, 2)):
        if rng.random() < 0.6:
            shared, whole = rng.random() < 0.5, rng.random() < 0.5
            barriers.append(Barrier(group, step, None if whole else rng.randrange(2), shared))
    for _ in range(rng.randrange(3, 12)):
        group, step = rng.randrange(GROUPS), rng.randrange(0, STEPS, 2)
        thread = rng.choice([0, 1, 2, 31, 32, 33])
        if (group, thread, step) not in taken:
            taken.add((group, thread, step))
            action = rng.choice([READ, READ, WRITE, WRITE, ATOMIC_READ, ATOMIC_ADD])
            places = [p for p in PLACES if p[1] == 4 or action < ATOMIC_READ]
            accesses.append(
                Access(group, thread, step, action, *rng.choice(places), rng.random() < 0.5)
            )
    return accesses, barriers


def is_race(a: Access, b: Access, barriers: list[Barrier]) -> bool:
    """Two accesses of one byte by two threads, one a write, one not atomic, nothing in between."""
    if a.shared != b.shared or (a.shared and a.group != b.group):
        return False
    if (a.group, a.thread) == (b.group, b.thread):
        return False
    if a.at >= b.at + b.size or b.at >= a.at + a.size:
        return False
    if not {a.action, b.action} & {WRITE, ATOMIC_ADD}:
        return False
    if a.action in (ATOMIC_READ, ATOMIC_ADD) and b.action in (ATOMIC_READ, ATOMIC_ADD):
        return False
    if a.group != b.group:
        return True
    first, last = sorted((a.step, b.step))
    together = {a.thread // 32} | {b.thread // 32}
    return not any(
        c.group == a.group and c.shared == a.shared and first < c.step < last
        and (c.simdgroup is None or together == {c.simdgroup})
        for c in barriers
    )  # fmt: skip


def encode(accesses: list[Access], barriers: list[Barrier]) -> np.ndarray:
    words = np.zeros((GROUPS, STEPS, THREADS), np.uint32)
    for a in accesses:
        words[a.group, a.step, a.thread] = a.action | a.size << 4 | a.at << 8 | a.shared << 16
    for b in barriers:
        first = 32 * (b.simdgroup or 0)
        lanes = slice(None) if b.simdgroup is None else slice(first, first + 32)
        kind = BARRIER if b.simdgroup is None else SIMDGROUP_BARRIER
        words[b.group, b.step, lanes] = kind | b.shared << 16
    return words


def test_verdicts_on_random_scripts(interpret: SoftKernel) -> None:
    rng, verdicts = random.Random(1), []
    steps, sums = np.array([STEPS], np.uint32), np.zeros(GROUPS * THREADS, np.uint32)
    for number in range(400):
        accesses, barriers = script(rng)
        words, memory = encode(accesses, barriers), np.zeros(2, np.uint32)
        arrays = (words, memory, steps, sums)
        buffers = {k: (array.ctypes.data, array.nbytes) for k, array in enumerate(arrays)}
        grid = (GROUPS * THREADS, 1, 1)
        dispatch = Dispatch(interpret, buffers, grid, (THREADS, 1, 1), order=number % 3)
        reports = run([dispatch], threads=1 + number % 2)
        assert {r.kind for r in reports} <= {"race"}, "\n".join(map(str, reports))
        for shared in (False, True):
            pairs = itertools.combinations([a for a in accesses if a.shared == shared], 2)
            expected = any(is_race(a, b, barriers) for a, b in pairs)
            found = [r for r in reports if (r.slot is None) == shared]
            what = f"script {number}: {accesses} {barriers} {[*map(str, found)]}"
            assert bool(found) == expected, what
            verdicts.append(expected)
    assert 0.2 < sum(verdicts) / len(verdicts) < 0.8, "the scripts should differ in their verdict"
