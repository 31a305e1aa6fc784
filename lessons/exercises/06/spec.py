"""Lesson 06: a row of weights times x."""

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize

from lessons.spec import Case, Task, Thread, Watched, case, place, thread_at
from tinyrvllm.kernels import matvec
from tinyrvllm.kernels.matmul import Matmul
from tinyrvllm.kernels.quant import UNIT, Matrix


def matvec_cases(rng: np.random.Generator) -> list[Case]:
    return [
        matvec_case(rng, Kind.F16, 1, 24, 576),
        matvec_case(rng, Kind.F32, 1, 5, 40),
        matvec_case(rng, Kind.Q8_0, 3, 20, 64),
        matvec_case(rng, Kind.F16, 2, 3, 1100),
        matvec_case(rng, Kind.Q4_1, 1, 40, 96, gated=True),
        matvec_case(rng, Kind.F32, 1, 9, int(rng.integers(17, 200))),
    ]


def weights(rng: np.random.Generator, kind: Kind, outputs: int, inputs: int) -> tuple:
    """(bytes as a file has them, their values)."""
    data = quantize(rng.standard_normal((outputs, inputs)).astype(np.float32), kind)
    values = dequantize(data, kind).reshape(outputs, inputs).astype(np.float64)
    return np.ascontiguousarray(data).view(np.uint8), values


def matvec_case(
    rng: np.random.Generator, kind: Kind, rows: int, outputs: int, inputs: int, gated: bool = False
) -> Case:
    x = rng.standard_normal((rows, inputs)).astype(np.float32)
    data, values = weights(rng, kind, outputs, inputs)
    y = np.full((rows, outputs), -1, np.float32)
    expected = x @ values.T
    up = None
    if gated:
        up_data, up_values = weights(rng, kind, outputs, inputs)
        up = Matrix(place(up_data), kind, outputs, inputs)
        expected = expected / (1 + np.exp(-expected)) * (x @ up_values.T)
    matrix = Matrix(place(data), kind, outputs, inputs)
    launch = matvec.launch(
        Matmul(place(x), matrix, place(y), rows, up=up, activation="silu" if gated else "none")
    )
    owned = dict(launch.constants)["OUTPUTS"] // (2 if gated else 1) * 32 // matvec.lanes(inputs)

    def owner(_: int, i: int) -> Thread:
        n = i % outputs
        return thread_at(launch.threads, (n // owned // 2, 0, 0), n // owned % 2 * 32)

    def watched(thread: Thread) -> dict[str, Watched]:
        if gated:
            return {}
        first = (thread.group[0] * 2 + thread.simdgroup) * owned
        mine = range(first, min(outputs, first + owned))
        own = np.arange(inputs) // UNIT % 32 == thread.lane
        if not mine:
            return {}
        starts = np.arange(thread.lane * UNIT, inputs, 32 * UNIT, dtype=np.float64)
        return {
            "start": np.tile(starts, len(mine) * rows),
            "sum": ((0.0, x[0, 0] * values[first, 0]),
                    np.concatenate([x[row, own] @ values[list(mine)][:, own].T
                                    for row in range(rows)])),
            "total": np.concatenate([x[row] @ values[list(mine)].T for row in range(rows)]),
        }  # fmt: skip

    shape = f"{rows} row{'s' * (rows > 1)} of x, {kind.name} {outputs} x {inputs}"
    return case(
        shape + ", gated" * gated,
        launch,
        {5: expected.astype(np.float32)},
        watched=watched,
        owner=owner,
    )


TASKS = [
    Task("06", "matvec", "matvec", matvec_cases, relative=1e-4, absolute=1e-4, engine="--no-fuse"),
]
