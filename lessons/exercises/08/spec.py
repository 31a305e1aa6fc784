"""Lesson 08: matrix tiles."""

import struct

import numpy as np

from lessons.judge import thread_at
from lessons.spec import Case, Task, Thread, Watched

TILE = 8  # of a simdgroup matrix
WIDE = 16  # of a threadgroup of the staged kernel: four simdgroups, an 8x8 quadrant each


def product(rng: np.random.Generator, rows: int, outputs: int, inputs: int) -> tuple:
    """x [rows, inputs], w [outputs, inputs], the parameters, and x W^T."""
    x = rng.standard_normal((rows, inputs)).astype(np.float32)
    w = rng.standard_normal((outputs, inputs)).astype(np.float32)
    sizes = np.frombuffer(struct.pack("<3I", rows, outputs, inputs), np.uint8)
    return x, w, sizes, (x.astype(np.float64) @ w.T.astype(np.float64)).astype(np.float32)


def tile_cases(rng: np.random.Generator) -> list[Case]:
    return [
        tile_case(rng, 16, 24, 32),
        tile_case(rng, 8, 8, 8),
        tile_case(rng, 24, 8, 40),
        tile_case(rng, *(8 * rng.integers(1, 5, 3))),
    ]


def tile_case(rng: np.random.Generator, rows: int, outputs: int, inputs: int) -> Case:
    x, w, sizes, expected = product(rng, rows, outputs, inputs)
    y = np.full((rows, outputs), -1, np.float32)

    def watched(thread: Thread) -> dict[str, Watched]:
        column, row, _ = thread.group
        steps = np.arange(0, inputs, TILE, dtype=np.float64)
        return {
            "x_at": row * TILE * inputs + steps,
            "w_at": column * TILE * inputs + steps,
            "y_at": row * TILE * outputs + column * TILE,
        }

    def owner(_: int, i: int) -> Thread:
        return thread_at((32, 1, 1), (i % outputs // TILE, i // outputs // TILE, 0), 0)

    return Case(
        f"{rows} x {outputs} x {inputs}",
        [x, w, y, sizes],
        {2: expected},
        (outputs // TILE, rows // TILE, 1),
        (32, 1, 1),
        watched=watched,
        owner=owner,
    )


TASKS = [
    Task("08", "tile", "tile", tile_cases, relative=1e-4, absolute=1e-4),
]
