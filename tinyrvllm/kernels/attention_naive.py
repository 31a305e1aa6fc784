"""The five-kernel attention that lesson 11 starts from: shaders/attention_naive.metal."""

import struct

from . import reduce
from .attention import Attention
from .launch import Argument, Cost, Launch, Span, ceil_div, reads, updates, writes

THREADS = 256


def scratch_bytes(attention: Attention, queries: int, keys: int) -> int:
    """Size of the scratch buffer of `launches`: K, V and the scores as floats."""
    gathered = keys * attention.layout.kv_heads * attention.layout.head_dim
    return 4 * (2 * gathered + attention.heads * queries * keys)


def launches(attention: Attention, scratch: Span, queries: int, keys: int) -> list[Launch]:
    """Five dependent launches: gather, scores, mask, softmax, apply.

    One sequence, the first of the batch, with `queries` rows and `keys` tokens in the cache.
    """
    a, head_dim = attention, attention.layout.head_dim
    gathered = keys * a.layout.kv_heads * head_dim
    k, v = scratch.part(0, 4 * gathered), scratch.part(4 * gathered, 4 * gathered)
    score_count = a.heads * queries * keys
    scores = scratch.part(8 * gathered, 4 * score_count)
    parameters = struct.pack(
        "<5I2f", queries, keys, a.heads, a.layout.kv_heads, a.window, a.scale, a.softcap
    )

    def step(kernel: str, count: int, cost: Cost, *arguments: Argument) -> Launch:
        return Launch(
            shader="attention_naive",
            kernel=kernel,
            constants=a.layout.constants,
            groups=(ceil_div(count, THREADS), 1, 1),
            threads=(THREADS, 1, 1),
            arguments=arguments,
            parameters=parameters,
            cost=cost,
            rows=queries,
            shape=f"{keys} keys",
        )

    q_count, k_bytes, score_bytes = queries * a.heads * head_dim, 4 * gathered, 4 * score_count
    flops = 2 * score_count * head_dim
    return [
        step(
            "naive_gather", gathered,
            Cost(2 * gathered * a.layout.dtype.itemsize, 2 * k_bytes),
            reads(a.k_pool), reads(a.v_pool), reads(a.block_tables), writes(k), writes(v),
        ),
        step(
            "naive_scores", score_count, Cost(4 * q_count + k_bytes, score_bytes, flops),
            reads(a.q), reads(k), writes(scores),
        ),
        step("naive_mask", score_count, Cost(0, score_bytes), updates(scores)),
        reduce.softmax(scores, scores, a.heads * queries, keys),
        step(
            "naive_apply", q_count, Cost(score_bytes + k_bytes, 4 * q_count, flops),
            reads(scores), reads(v), writes(a.out),
        ),
    ]  # fmt: skip
