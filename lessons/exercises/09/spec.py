"""Lesson 09: a matmul whose simdgroups share K."""

import struct

import numpy as np

from lessons.spec import Case, Task, Thread, Watched, thread_at

SIMDGROUPS, STEP, OUTPUTS = 4, 16, 4


def ksplit_cases(rng: np.random.Generator) -> list[Case]:
    return [
        ksplit_case(rng, 8, 12, 160),
        ksplit_case(rng, 5, 7, 64),
        ksplit_case(rng, 1, 4, 16),  # three simdgroups have nothing to do
        ksplit_case(rng, 3, 5, 100),  # the last step is shorter
        ksplit_case(rng, 7, int(rng.integers(9, 30)), int(rng.integers(130, 300))),
    ]


def ksplit_case(rng: np.random.Generator, rows: int, outputs: int, inputs: int) -> Case:
    # Small multiples of 1/4: every sum is exact, in whatever order.
    x = rng.integers(-8, 9, (rows, inputs)).astype(np.float32) / 4
    weight = (rng.integers(-8, 9, (outputs, inputs)) / 4).astype(np.float16)
    y = np.full((rows, outputs), -1, np.float32)
    exact = x.astype(np.float64) @ weight.T.astype(np.float64)
    share = np.arange(inputs) // STEP % SIMDGROUPS  # which simdgroup has this k

    def watched(thread: Thread) -> dict[str, Watched]:
        row, n = thread.lane // OUTPUTS, thread.group[0] * OUTPUTS + thread.lane % OUTPUTS
        if row >= rows or n >= outputs:
            return {}
        mine = share == thread.simdgroup
        products = x[row].astype(np.float64) * weight[n]
        steps = np.arange(thread.simdgroup * STEP, inputs, SIMDGROUPS * STEP)
        return {
            "row": row,
            "n": n,
            "first": steps,
            "sum": ([0.0], products[mine].sum()),
            "total": ([0.0], exact[row, n]),
        }

    def owner(_: int, index: int) -> Thread:
        row, n = divmod(index, outputs)
        return thread_at((128, 1, 1), (n // OUTPUTS, 0, 0), row * OUTPUTS + n % OUTPUTS)

    return Case(
        f"{rows} rows, {outputs} outputs, {inputs} inputs",
        [x, weight, y, np.frombuffer(struct.pack("<3I", rows, outputs, inputs), np.uint8)],
        {2: exact.astype(np.float32)},
        groups=(-(-outputs // OUTPUTS), 1, 1),
        threads=(32 * SIMDGROUPS, 1, 1),
        watched=watched,
        owner=owner,
        upstream=lambda thread: [
            thread_at((128, 1, 1), thread.group, thread.lane + 32 * s) for s in range(SIMDGROUPS)
        ],
    )


TASKS = [Task("09", "ksplit", "ksplit", ksplit_cases)]
