"""Lesson 15: two kernels made one."""

import struct

import numpy as np

from lessons.spec import Case, Task, Thread, Watched, thread_at

THREADS, EPSILON = 128, 1e-5


def add_norm_cases(rng: np.random.Generator) -> list[Case]:
    return [
        add_norm_case(rng, 2, 576),
        add_norm_case(rng, 3, 7),
        add_norm_case(rng, 1, 130),
        add_norm_case(rng, 2, 64, 1e-3),  # so small that epsilon counts
        add_norm_case(rng, 4, int(rng.integers(150, 300))),
    ]


def add_norm_case(rng: np.random.Generator, rows: int, columns: int, size: float = 1.0) -> Case:
    x, r = (size * rng.standard_normal((2, rows, columns))).astype(np.float32)
    weight = rng.standard_normal(columns).astype(np.float32)
    added = (x + r).astype(np.float64)
    mean = (added**2).mean(axis=1)
    scale = 1 / np.sqrt(mean + EPSILON)
    own = np.arange(columns) % THREADS

    def watched(thread: Thread) -> dict[str, Watched]:
        row, squares = thread.group[0], added[thread.group[0]] ** 2
        mine = squares[own == thread.index]
        return {
            "value": added[row, own == thread.index],
            "squares": np.append(0.0, np.cumsum(mine)),
            "total": squares.sum(),
            "scale": scale[row],
        }

    return Case(
        f"{rows} rows of {columns}" + (f", values around {size:g}" if size != 1 else ""),
        [x.copy(), r, weight, np.full((rows, columns), -1, np.float32),
         np.frombuffer(struct.pack("<If", columns, EPSILON), np.uint8)],
        {0: added.astype(np.float32), 3: (added * scale[:, None] * weight).astype(np.float32)},
        groups=(rows, 1, 1),
        threads=(THREADS, 1, 1),
        watched=watched,
        owner=lambda _, i: thread_at((THREADS, 1, 1), (i // columns, 0, 0), i % columns % THREADS),
    )  # fmt: skip


TASKS = [Task("15", "add_norm", "add_norm", add_norm_cases)]
