"""Q/K norm, rotary embedding and the write to the paged cache: shaders/rope.metal."""

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .kv_cache import KvLayout
from .launch import Cost, KernelError, Launch, Span, ceil_div, optional, reads, updates, writes

HEADS_PER_THREADGROUP = 4  # one simdgroup each


def turns(frequencies: NDArray) -> NDArray:
    """Radians a position [rope_dim / 2], float64 -> turns a position as high + low floats.

    Returns float32 [rope_dim / 2, 2]; the sum of a pair is exact to 2^-48 of its value.
    """
    exact = np.asarray(frequencies, np.float64) / (2 * np.pi)
    high = exact.astype(np.float32)
    return np.stack([high, (exact - high).astype(np.float32)], axis=-1)


@dataclass(frozen=True)
class Unrotated:
    """What attention needs to do with one row of each sequence what `rope_and_store` does.

    Its q is as the projection left it, its newest key and value are not in the cache. k, v and the
    rest: see `rope_and_store`.
    """

    k: Span
    v: Span
    turns: Span
    rope_dim: int
    interleaved: bool
    strides: tuple[int, int]  # of k and v; q's is attention's
    norms: tuple[Span, Span] | None = None
    norm_epsilon: float = 0.0


def check(rope_dim: int, head_dim: int) -> None:
    """Raises KernelError where so many dimensions of a head cannot be rotated."""
    if rope_dim % 2 or not 0 <= rope_dim <= head_dim:
        raise KernelError(
            f"rope_dim: expected an even number up to head_dim {head_dim}, found {rope_dim}"
        )


def rope_and_store(
    q: Span, k: Span, v: Span, turns: Span, positions: Span, slots: Span,
    k_pool: Span, v_pool: Span, layout: KvLayout, rows: int, heads: int, rope_dim: int,
    interleaved: bool, strides: tuple[int, int, int],
    norms: tuple[Span, Span] | None = None, norm_epsilon: float = 0.0,
) -> Launch:  # fmt: skip
    """Rotates Q in place, and rotates K and copies V into their slots of the cache.

    q: [rows, heads, head_dim] float, k and v: [rows, kv_heads, head_dim], rows `strides` floats
    apart. turns: see `turns`. positions, slots: [rows] int32; slot -1 leaves the row alone.
    norms: weights [head_dim] of the RMS norms of each head of Q and K, before the rotation.
    """
    check(rope_dim, layout.head_dim)
    all_heads = heads + 2 * layout.kv_heads
    row_bytes = 4 * all_heads * layout.head_dim
    written = 2 * layout.kv_heads * layout.padded_dim * layout.dtype.itemsize
    return Launch(
        shader="rope",
        kernel="rope_and_store",
        constants=(
            ("INTERLEAVED", interleaved),
            ("QK_NORM", norms is not None),
            *layout.constants,
        ),
        groups=(ceil_div(all_heads, HEADS_PER_THREADGROUP), rows, 1),
        threads=(32 * HEADS_PER_THREADGROUP, 1, 1),
        arguments=(
            updates(q), reads(k), reads(v),
            optional(norms[0] if norms else None, q), optional(norms[1] if norms else None, q),
            reads(turns), reads(positions), reads(slots), writes(k_pool), writes(v_pool),
        ),
        parameters=struct.pack(
            "<6If", heads, layout.kv_heads, rope_dim, *strides, norm_epsilon
        ),
        cost=Cost(
            bytes_read=rows * row_bytes + 4 * rope_dim,
            bytes_written=rows * (4 * heads * layout.head_dim + written),
            flops=rows * (heads + layout.kv_heads) * rope_dim * 3,
        ),
        rows=rows,
        shape=f"{heads}+{layout.kv_heads} heads of {layout.head_dim}",
    )  # fmt: skip
