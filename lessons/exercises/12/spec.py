"""Lesson 12: attention in one pass."""

import struct

import numpy as np

from lessons.spec import Case, Task, Thread, Watched, thread_at

HEAD_DIM = 32  # a lane has one dimension


def attend_cases(rng: np.random.Generator) -> list[Case]:
    return [
        attend_case(rng, 2, 1, 9),
        attend_case(rng, 6, 2, 40),
        attend_case(rng, 3, 3, 1),
        attend_case(rng, 2, 2, 50, window=7),  # the first keys are masked
        attend_case(rng, 2, 1, 30, size=30.0),  # exp of a score is infinite
        attend_case(rng, 4, 2, int(rng.integers(20, 60)), window=16),
    ]


def attend_case(
    rng: np.random.Generator,
    heads: int,
    kv_heads: int,
    keys: int,
    window: int = 0,
    size: float = 1.0,
) -> Case:
    q = (size * rng.standard_normal((heads, HEAD_DIM))).astype(np.float32)
    k, v = (rng.standard_normal((keys, kv_heads, HEAD_DIM)).astype(np.float32) for _ in range(2))
    scale, ratio = HEAD_DIM**-0.5, heads // kv_heads
    first = max(0, keys - window) if window else 0
    k64, v64 = (x.astype(np.float64).repeat(ratio, axis=1) for x in (k, v))
    scores = np.einsum("hd,khd->hk", q.astype(np.float64), k64) * scale
    scores[:, :first] = -np.inf
    highest = scores.max(axis=1)
    weights = np.exp(scores - highest[:, None])
    sums = np.einsum("hk,khd->hd", weights, v64)
    out = sums / weights.sum(axis=1, keepdims=True)

    # What the variables hold, key after key.
    with np.errstate(over="ignore"):
        higher = np.maximum.accumulate(scores, axis=1)
        base = np.where(np.isinf(higher), 0, higher)
        before = np.concatenate([np.full((heads, 1), -np.inf), higher[:, :-1]], axis=1)
        weight, correction = np.exp(scores - base), np.exp(before - base)
    total = np.zeros((heads, keys + 1))
    running = np.zeros((heads, keys + 1, HEAD_DIM))
    for key in range(keys):
        total[:, key + 1] = total[:, key] * correction[:, key] + weight[:, key]
        running[:, key + 1] = running[:, key] * correction[:, key, None]
        running[:, key + 1] += weight[:, key, None] * v64[key]

    def watched(thread: Thread) -> dict[str, Watched]:
        head = thread.group[0]
        return {
            "visible": (np.arange(keys) >= first).astype(np.float64),
            "score": scores[head],
            "higher": higher[head],
            "correction": correction[head],
            "weight": weight[head],
            "best": np.append(-np.inf, higher[head]),
            "total": total[head],
            "sum": running[head, :, thread.lane],
        }

    return Case(
        f"{heads} heads on {kv_heads}, {keys} keys" + (f", a window of {window}" if window else "")
        + (f", queries around {size:g}" if size != 1 else ""),
        [q, k, v, np.full((heads, HEAD_DIM), -1, np.float32),
         np.frombuffer(struct.pack("<4If", keys, heads, kv_heads, window, scale), np.uint8)],
        {3: out.astype(np.float32)},
        groups=(heads, 1, 1),
        threads=(32, 1, 1),
        watched=watched,
        owner=lambda _, i: thread_at((32, 1, 1), (i // HEAD_DIM, 0, 0), i % HEAD_DIM),
    )  # fmt: skip


TASKS = [Task("12", "online", "attend", attend_cases, relative=1e-4, absolute=1e-5)]
