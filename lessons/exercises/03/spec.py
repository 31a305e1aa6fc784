"""Lesson 03: a first kernel."""

import numpy as np

from lessons.spec import Case, Task, Thread, Watched, case, place, thread_at
from tinyrvllm.kernels import elementwise

THREADS = elementwise.THREADS


def gate_cases(rng: np.random.Generator) -> list[Case]:
    return [
        gate_case("1,000 elements", 3 * rng.standard_normal(1000), rng),
        gate_case("1 element", rng.standard_normal(1), rng),
        gate_case("512 elements, from -100 to 100", np.linspace(-100, 100, 512), rng),
        gate_case("a random number of elements", rng.standard_normal(rng.integers(300, 900)), rng),
    ]


def gate_case(title: str, values: np.ndarray, rng: np.random.Generator) -> Case:
    count = values.size
    gate, up = values.astype(np.float32), rng.standard_normal(count).astype(np.float32)
    v = gate.astype(np.float64)
    silu = v / (1 + np.exp(-v))
    expected = silu * up

    def watched(thread: Thread) -> dict[str, Watched]:
        i = thread.position[0]
        if i >= count:
            return {}
        return {"v": v[i], "silu": silu[i], "value": expected[i]}

    y = np.full(count, -1, np.float32)
    return case(
        title,
        elementwise.gate(place(gate), place(up), place(y), count, "silu"),
        {2: expected.astype(np.float32)},
        watched=watched,
        owner=lambda _, i: thread_at((THREADS, 1, 1), (i // THREADS, 0, 0), i % THREADS),
    )


TASKS = [Task("03", "gate", "gate", gate_cases, relative=1e-4)]
