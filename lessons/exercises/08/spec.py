"""Lesson 08: matrix tiles."""

import struct

import numpy as np

from lessons.spec import Case, Task, Thread, Watched, thread_at

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


def staged_cases(rng: np.random.Generator) -> list[Case]:
    return [
        staged_case(rng, 20, 24, 40),
        staged_case(rng, 16, 16, 16),
        staged_case(rng, 3, 33, 7),
        staged_case(rng, *rng.integers(1, 40, 3)),
    ]


def staged_case(rng: np.random.Generator, rows: int, outputs: int, inputs: int) -> Case:
    x, w, sizes, expected = product(rng, rows, outputs, inputs)
    y = np.full((rows, outputs), -1, np.float32)
    groups = (-(-outputs // WIDE), -(-rows // WIDE), 1)
    steps = -(-inputs // WIDE)

    def staged(matrix: np.ndarray, first: int, thread: Thread) -> np.ndarray:
        """What a thread stages: two elements a round, zeros past the edges."""
        padded = np.zeros((first + WIDE, steps * WIDE))
        part = matrix[: first + WIDE]
        padded[: part.shape[0], :inputs] = part
        e = np.array([thread.index, thread.index + 128])
        rows, columns = first + e // WIDE, e % WIDE
        return np.concatenate([padded[rows, s * WIDE + columns] for s in range(steps)])

    def watched(thread: Thread) -> dict[str, Watched]:
        column, row, _ = thread.group
        down, across = thread.simdgroup // 2 * TILE, thread.simdgroup % 2 * TILE
        kk = np.tile([0.0, TILE], steps)
        return {
            "x_value": staged(x, row * WIDE, thread),
            "w_value": staged(w, column * WIDE, thread),
            "x_at": down * WIDE + kk,
            "w_at": across * WIDE + kk,
            "y_at": down * WIDE + across,
        }

    def owner(_: int, i: int) -> Thread:
        row, n = divmod(i, outputs)
        e = row % WIDE * WIDE + n % WIDE
        return thread_at((128, 1, 1), (n // WIDE, row // WIDE, 0), e % 128)

    return Case(
        f"{rows} x {outputs} x {inputs}",
        [x, w, y, sizes],
        {2: expected},
        groups,
        (128, 1, 1),
        watched=watched,
        owner=owner,
    )


TASKS = [
    Task("08", "tile", "tile", tile_cases, relative=1e-4, absolute=1e-4),
    Task("08", "staged", "staged", staged_cases, relative=1e-4, absolute=1e-4),
]
