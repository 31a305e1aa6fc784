"""Lesson 05: reductions over a row."""

import numpy as np

from lessons.spec import Case, Task, Thread, Watched, case, place, thread_at
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


def softmax_cases(rng: np.random.Generator) -> list[Case]:
    masked = rng.standard_normal((3, 150)).astype(np.float32)
    masked[0, rng.permutation(150)[:70]] = -np.inf
    masked[1] = -np.inf
    return [
        softmax_case("3 rows of 576 columns", 8 * rng.standard_normal((3, 576))),
        softmax_case("2 rows of 7 columns", rng.standard_normal((2, 7))),
        softmax_case("1 row of 33 columns, all negative", -40 - rng.random((1, 33))),
        softmax_case("1 row of 130 columns, values around 1000", 1000 + rng.random((1, 130))),
        softmax_case("3 rows of 150 columns, some masked, one wholly masked", masked),
        softmax_case("2 rows of random length", rng.standard_normal((2, rng.integers(8, 300)))),
    ]


def softmax_case(title: str, values: np.ndarray) -> Case:
    x = values.astype(np.float32)
    rows, columns = x.shape
    y = np.full((rows, columns), -1, np.float32)
    exact = x.astype(np.float64)
    best = exact.max(axis=1)
    shifted = exact - np.where(np.isinf(best), 0, best)[:, None]
    exponentials = np.exp(shifted)
    total = exponentials.sum(axis=1)
    expected = exponentials / np.where(total == 0, 1, total)[:, None]

    def watched(thread: Thread) -> dict[str, Watched]:
        row, own = thread.group[0], np.arange(columns) % THREADS
        mine, simdgroup = own == thread.index, own // 32 == thread.simdgroup
        first = exact[row, mine][:1].tolist()
        return {
            "best": ((-np.inf, *first), exact[row, mine].max(initial=-np.inf)),
            "row_best": ((-np.inf, exact[row, own < 32].max()), best[row]),
            "sum": ((0.0, *exponentials[row, mine][:1].tolist()), exponentials[row, mine].sum()),
            "simd_total": exponentials[row, simdgroup].sum(),
            "row_sum": total[row],
            "value": expected[row, mine],
        }

    return case(
        title,
        reduce.softmax(place(x), place(y), rows, columns),
        {1: expected.astype(np.float32)},
        watched=watched,
        owner=lambda _, i: thread_at((THREADS, 1, 1), (i // columns, 0, 0), i % columns % THREADS),
    )


TASKS = [
    Task("05", "rmsnorm", "rmsnorm", rmsnorm_cases, relative=1e-4, engine="--no-fuse"),
    Task("05", "softmax", "softmax", softmax_cases, relative=1e-4),
]
