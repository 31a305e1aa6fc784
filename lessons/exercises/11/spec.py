"""Lesson 11: paged attention in five kernels; two of them."""

import struct

import numpy as np

from lessons.spec import Case, Task, Thread, Watched, thread_at
from tinyrvllm.kernels.kv_cache import KvLayout

THREADS = 256


def parameters(
    queries: int, keys: int, heads: int, kv_heads: int, scale: float = 1.0, softcap: float = 0.0
) -> np.ndarray:
    return np.frombuffer(
        struct.pack("<5I2f", queries, keys, heads, kv_heads, 0, scale, softcap), np.uint8
    )


def owner(_: int, index: int) -> Thread:
    """One thread an element."""
    return thread_at((THREADS, 1, 1), (index // THREADS, 0, 0), index % THREADS)


def groups(count: int) -> tuple[int, int, int]:
    return (-(-count // THREADS), 1, 1)


# ---- gather


def gather_cases(rng: np.random.Generator) -> list[Case]:
    return [
        gather_case(rng, 8, 1, 8, 4),
        gather_case(rng, 37, 3, 16, 8),
        gather_case(rng, int(rng.integers(17, 60)), 2, 12, 16),
    ]


def gather_case(
    rng: np.random.Generator, keys: int, kv_heads: int, head_dim: int, block_size: int
) -> Case:
    layout = KvLayout(16, block_size, kv_heads, head_dim, f32=True)
    tokens = rng.standard_normal((2, 16 * block_size, kv_heads, head_dim)).astype(np.float32)
    table = rng.permutation(16)[: -(-keys // block_size)].astype(np.int32)
    slots = table[np.arange(keys) // block_size] * block_size + np.arange(keys) % block_size
    count = keys * kv_heads * head_dim

    def watched(thread: Thread) -> dict[str, Watched]:
        i = thread.position[0]
        if i >= count:
            return {}
        d, head, key = i % head_dim, i // head_dim % kv_heads, i // head_dim // kv_heads
        return {"d": d, "head": head, "key": key, "block": int(table[key // block_size]),
                "slot": int(slots[key])}  # fmt: skip

    return Case(
        f"{keys} keys in blocks of {block_size}, {kv_heads} KV heads of {head_dim}",
        [layout.pack_k(tokens[0]).reshape(-1).view(np.uint8),
         layout.pack_v(tokens[1]).reshape(-1).view(np.uint8), table,
         np.full((keys, kv_heads, head_dim), -1, np.float32),
         np.full((keys, kv_heads, head_dim), -1, np.float32),
         parameters(1, keys, kv_heads, kv_heads)],
        {3: tokens[0, slots], 4: tokens[1, slots]},
        groups=groups(count),
        threads=(THREADS, 1, 1),
        constants=dict(layout.constants),
        watched=watched,
        owner=owner,
    )  # fmt: skip


# ---- scores


def score_cases(rng: np.random.Generator) -> list[Case]:
    return [
        score_case(rng, 1, 12, 4, 2, 16),
        score_case(rng, 5, 9, 6, 2, 8),
        score_case(rng, 3, 20, 3, 3, 10, softcap=2.0),
        score_case(rng, 2, int(rng.integers(5, 40)), 4, 1, 32),
    ]


def score_case(
    rng: np.random.Generator, queries: int, keys: int, heads: int, kv_heads: int, head_dim: int,
    softcap: float = 0.0,
) -> Case:  # fmt: skip
    q = rng.standard_normal((queries, heads, head_dim)).astype(np.float32)
    k = rng.standard_normal((keys, kv_heads, head_dim)).astype(np.float32)
    scale, ratio = head_dim**-0.5, heads // kv_heads
    products = np.einsum("qhd,khd->hqk", q.astype(np.float64), k.repeat(ratio, axis=1))
    scores = products * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)

    def watched(thread: Thread) -> dict[str, Watched]:
        i = thread.position[0]
        if i >= scores.size:
            return {}
        head, query, key = (int(n) for n in np.unravel_index(i, scores.shape))
        return {"head": head, "query": query, "key": key, "kv_head": head // ratio,
                "dot": ([0.0], products.flat[i]), "score": scores.flat[i]}  # fmt: skip

    return Case(
        f"{queries} queries, {keys} keys, {heads} heads on {kv_heads} KV heads"
        + (", soft cap" if softcap else ""),
        [q, k, np.full(scores.shape, -1, np.float32),
         parameters(queries, keys, heads, kv_heads, scale, softcap)],
        {2: scores.astype(np.float32)},
        groups=groups(scores.size),
        threads=(THREADS, 1, 1),
        constants={"KV_F32": True, "BLOCK_SIZE": 16, "HEAD_DIM": head_dim},
        watched=watched,
        owner=owner,
    )  # fmt: skip


TASKS = [
    Task("11", "gather", "naive_gather", gather_cases),
    Task("11", "scores", "naive_scores", score_cases, relative=1e-4, absolute=1e-5),
]
