"""Lesson 07: quantised weights."""

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize

from lessons.spec import Case, Task, Thread, Watched, case, place, thread_at
from tinyrvllm.kernels import embedding
from tinyrvllm.kernels.quant import UNIT, Matrix

THREADS = embedding.THREADS


def embed_cases(rng: np.random.Generator) -> list[Case]:
    some = [3, 0, -1, 4]
    return [
        embed_case(rng, Kind.Q8_0, [2, 0], 96),
        embed_case(rng, Kind.Q4_1, [2, 0], 96),
        embed_case(rng, Kind.Q8_0, some, 576, scale=24.0),
        embed_case(rng, Kind.Q4_1, some, 1088),
        embed_case(rng, Kind.F32, some, 40),
        embed_case(rng, Kind.Q4_1, rng.permutation(5)[:3].tolist(), 32 * int(rng.integers(1, 9))),
    ]


def fields(data: np.ndarray, kind: Kind) -> dict[str, np.ndarray]:
    """What each weight of some rows is made of: d, m and q, each [rows, columns]."""
    if kind == Kind.F32:
        return {}
    size = 34 if kind == Kind.Q8_0 else 20
    blocks = data.reshape(data.shape[0], -1, size)
    d = blocks[..., :2].copy().view(np.float16).astype(np.float64).repeat(32, axis=2)
    if kind == Kind.Q8_0:
        found = {"d": d, "q": blocks[..., 2:].view(np.int8)}
    else:
        m = blocks[..., 2:4].copy().view(np.float16).astype(np.float64).repeat(32, axis=2)
        nibbles = blocks[..., 4:]
        found = {"d": d, "m": m, "q": np.concatenate([nibbles & 15, nibbles >> 4], axis=2)}
    return {name: v.reshape(data.shape[0], -1).astype(np.float64) for name, v in found.items()}


def embed_case(
    rng: np.random.Generator, kind: Kind, ids: list[int], columns: int, scale: float = 1.0
) -> Case:
    table = rng.standard_normal((5, columns)) + 0.3
    data = quantize(table.astype(np.float32), kind)
    values = dequantize(data, kind).reshape(5, columns).astype(np.float64)
    data = np.ascontiguousarray(data).view(np.uint8).reshape(5, -1)
    expected = np.where(np.array(ids)[:, None] < 0, 0.0, values[ids] * scale)
    y = np.full((len(ids), columns), -1, np.float32)
    launch = embedding.launch(
        place(np.array(ids, np.int32)), Matrix(place(data), kind, 5, columns), place(y),
        len(ids), scale,
    )  # fmt: skip
    parts = fields(data, kind)

    def watched(thread: Thread) -> dict[str, Watched]:
        row = thread.group[1]
        first = (thread.group[0] * THREADS + thread.index) * UNIT
        mine = slice(first, min(first + UNIT, columns))
        if ids[row] < 0 or first >= columns:
            return {}
        return {name: v[ids[row], mine] for name, v in parts.items()}

    def owner(_: int, i: int) -> Thread:
        unit = i % columns // UNIT
        return thread_at(launch.threads, (unit // THREADS, i // columns, 0), unit % THREADS)

    return case(
        f"{len(ids)} rows of {columns} columns, {kind.name}" + f", times {scale:g}" * (scale != 1),
        launch,
        {2: expected.astype(np.float32)},
        watched=watched,
        owner=owner,
    )


TASKS = [
    Task("07", "embed", "embed", embed_cases, relative=1e-4, absolute=1e-5, engine="--no-fuse"),
]
