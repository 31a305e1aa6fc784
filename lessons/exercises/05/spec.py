"""Lesson 05: reductions over a row."""

import numpy as np

from lessons.judge import thread_at
from lessons.spec import Case, Task, Thread, Watched, case, place
from tinyrvllm.kernels import reduce

EPSILON = 1e-5
THREADS = reduce.THREADS


def rmsnorm_cases(rng: np.random.Generator) -> list[Case]:
    return [
        rmsnorm_case(rng, 3, 576, 1.0),
        rmsnorm_case(rng, 2, 7, 1.0),
        rmsnorm_case(rng, 5, 33, 1.0),
        rmsnorm_case(rng, 2, 130, 1.0),
        rmsnorm_case(rng, 2, 96, 1e-3),  # so small that epsilon counts
        rmsnorm_case(rng, 3, int(rng.integers(200, 400)), 100.0),
    ]


def rmsnorm_case(rng: np.random.Generator, rows: int, columns: int, size: float) -> Case:
    x = (size * rng.standard_normal((rows, columns))).astype(np.float32)
    weight = rng.standard_normal(columns).astype(np.float32)
    y = np.full((rows, columns), -1, np.float32)
    exact = x.astype(np.float64)
    mean = (exact**2).mean(axis=1)
    scale = 1 / np.sqrt(mean + EPSILON)

    def watched(thread: Thread) -> dict[str, Watched]:
        row, own = thread.group[0], np.arange(columns) % THREADS
        squares = exact[row] ** 2
        return {
            "squares": ((0.0, squares[thread.index : thread.index + 1].sum()),
                        squares[own == thread.index].sum()),
            "partial": squares[own // 32 == thread.simdgroup].sum(),
            "total": squares.sum(),
            "mean": mean[row],
            "scale": scale[row],
            "value": (exact[row] * scale[row] * weight)[own == thread.index],
        }  # fmt: skip

    return case(
        f"{rows} rows of {columns} columns" + (f", values around {size:g}" if size != 1 else ""),
        reduce.rmsnorm(place(x), place(weight), place(y), rows, columns, EPSILON),
        {3: (exact * scale[:, None] * weight).astype(np.float32)},
        watched=watched,
        owner=lambda _, i: thread_at((THREADS, 1, 1), (i // columns, 0, 0), i % columns % THREADS),
    )


TASKS = [
    Task("05", "rmsnorm", "rmsnorm", rmsnorm_cases, relative=1e-4, engine="--no-fuse"),
]
