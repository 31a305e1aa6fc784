"""Paged attention, straight from the blocks: shaders/attention_decode.metal and its siblings."""

import struct
from dataclasses import dataclass

from . import rope
from .kv_cache import KvLayout
from .launch import (
    Argument,
    Cost,
    KernelError,
    Launch,
    Span,
    ceil_div,
    optional,
    reads,
    unused,
    updates,
    writes,
)

SPLIT_KEYS = 512  # keys of one threadgroup in decoding; as in attention.h
MAX_GROUP = 8  # query heads of a threadgroup


@dataclass(frozen=True)
class Attention:
    """One layer's attention over a batch.

    q, out: [rows, heads, head_dim] float. block_tables: [sequences, max_blocks] int32.
    context_lens: [sequences] int32, tokens in the cache including this step's; 0 is padding.
    query_start: [sequences + 1] int32: rows query_start[s] to query_start[s + 1] are the last
    tokens of sequence s. `decode` serves the sequences with one row, `prefill` those with more.
    """

    q: Span
    k_pool: Span
    v_pool: Span
    block_tables: Span
    context_lens: Span
    query_start: Span
    out: Span
    layout: KvLayout
    heads: int
    sequences: int
    max_blocks: int
    scale: float
    window: int = 0  # keys that a query sees, itself included; 0: all
    softcap: float = 0.0  # 0: none
    q_stride: int = 0  # floats from row to row; 0: heads * head_dim
    out_stride: int = 0
    spread: bool = False  # decode: a threadgroup for each head, for GPUs of many cores
    unrotated: rope.Unrotated | None = None  # with spread: `decode` does what rope_and_store does

    def __post_init__(self) -> None:
        if self.heads % self.layout.kv_heads:
            raise KernelError(
                f"expected heads to be a multiple of {self.layout.kv_heads} KV heads, "
                f"found {self.heads}"
            )
        if self.unrotated is not None:
            rope.check(self.unrotated.rope_dim, self.layout.head_dim)
            if not self.spread:
                raise KernelError("unrotated: expected spread with it; others read the cache only")

    @property
    def group(self) -> int:
        """Query heads that share a threadgroup: the largest divisor of the ratio up to 8; 1 if spread."""
        ratio = 1 if self.spread else self.heads // self.layout.kv_heads
        return next(g for g in range(min(ratio, MAX_GROUP), 0, -1) if ratio % g == 0)

    def parameters(self, splits: int) -> bytes:
        """struct AttentionArgs of shaders/attention.h."""
        width, r = self.heads * self.layout.head_dim, self.unrotated
        return struct.pack(
            "<7I2f3If",
            self.heads, self.layout.kv_heads, self.q_stride or width, self.out_stride or width,
            self.max_blocks, self.window, splits, self.scale, self.softcap,
            *((r.rope_dim, *r.strides, r.norm_epsilon) if r else (0, 0, 0, 0.0)),
        )  # fmt: skip

    def cost(self, queries: int, keys: int, **details: float) -> Cost:
        """`queries` rows in all, each over `keys` keys."""
        width, kv_width = self.heads * self.layout.head_dim, self.layout.kv_heads
        kv_bytes = 2 * keys * kv_width * self.layout.padded_dim * self.layout.dtype.itemsize
        newest = 2 * self.sequences * kv_width if self.unrotated else 0  # heads of keys and values
        return Cost(
            bytes_read=self.sequences * kv_bytes
            + 4 * queries * width
            + 4 * newest * self.layout.head_dim,
            bytes_written=4 * queries * width
            + newest * self.layout.padded_dim * self.layout.dtype.itemsize,
            flops=4 * queries * keys * width,
            **details,  # type: ignore[arg-type]
        )


def decode_splits(max_context: int) -> int:
    """Parts that a context of up to `max_context` tokens is cut into."""
    return ceil_div(max_context, SPLIT_KEYS)


def partial_bytes(attention: Attention, max_context: int) -> int:
    """Size of the scratch buffer that `decode` needs when there is more than one split."""
    rows = attention.sequences * attention.heads * decode_splits(max_context)
    return 4 * rows * (attention.layout.head_dim + 2)


def decode(attention: Attention, max_context: int, partial: Span | None = None) -> list[Launch]:
    """One launch, or two dependent ones when max_context needs more than one split.

    max_context: an upper bound of context_lens; it does not change the result, bit for bit.
    partial: scratch of `partial_bytes`, needed for more than one split.
    """
    a, splits = attention, decode_splits(max_context)
    if splits > 1 and (partial is None or partial.nbytes < partial_bytes(a, max_context)):
        raise KernelError(
            f"partial: expected {partial_bytes(a, max_context)} bytes for {splits} splits, "
            f"found {partial.nbytes if partial else 'none'}"
        )
    parameters = a.parameters(splits)
    shape = f"{a.heads}/{a.layout.kv_heads} x {a.layout.head_dim}, {max_context} keys"
    batch = (reads(a.context_lens), reads(a.query_start))
    split = Launch(
        shader="attention_spread" if a.spread else "attention_decode",
        kernel="attend_spread" if a.spread else "attend_one",
        constants=(*(_rotation(a) if a.spread else (("GROUP", a.group),)), *a.layout.constants),
        groups=(splits, a.heads // a.group, a.sequences),
        threads=(256 if a.spread else 128, 1, 1),
        arguments=(
            reads(a.q), *map(updates if a.unrotated else reads, (a.k_pool, a.v_pool)),
            reads(a.block_tables), *batch,
            writes(a.out) if splits == 1 else unused(a.out),
            writes(partial) if partial is not None and splits > 1 else unused(a.out),
            *(_rotation_arguments(a) if a.spread else ()),
        ),
        parameters=parameters,
        cost=a.cost(
            a.sequences, max_context, barriers=3 if a.spread else 2 + 2 * a.group,
            threadgroup_bytes=14_400 if a.spread else 13_056,
        ),
        rows=a.sequences,
        shape=shape,
    )  # fmt: skip
    if splits == 1 or partial is None:
        return [split]
    combine = Launch(
        shader="attention_decode",
        kernel="attend_combine",
        constants=(("GROUP", a.group), *a.layout.constants),
        groups=(a.heads, a.sequences, 1),
        threads=(128, 1, 1),
        arguments=(reads(partial), *batch, writes(a.out)),
        parameters=parameters,
        cost=Cost(
            bytes_read=partial_bytes(a, max_context),
            bytes_written=4 * a.sequences * a.heads * a.layout.head_dim,
        ),
        rows=a.sequences,
        shape=shape,
    )
    return [split, combine]


def _rotation(a: Attention) -> tuple[tuple[str, bool], ...]:
    """Function constants of attend_spread."""
    r = a.unrotated
    return (
        ("ROPED", r is not None),
        ("INTERLEAVED", r is not None and r.interleaved),
        ("QK_NORM", r is not None and r.norms is not None),
    )


def _rotation_arguments(a: Attention) -> tuple[Argument, ...]:
    """Slots 8 to 12 of attend_spread."""
    r = a.unrotated
    if r is None:
        return (unused(a.q),) * 5
    q_norm, k_norm = r.norms or (None, None)
    return reads(r.k), reads(r.v), optional(q_norm, a.q), optional(k_norm, a.q), reads(r.turns)


def prefill(attention: Attention, max_queries: int) -> Launch:
    """Attention of the sequences that have more than one row, each row seeing what is before it.

    max_queries: an upper bound of the rows of a sequence in this batch.
    """
    a = attention
    if a.unrotated is not None:
        raise KernelError("unrotated: expected a step in which all sequences have one row")
    wide = a.layout.head_dim > (64 if a.layout.f32 else 128)
    queries = 8 if wide else 32  # of a threadgroup
    return Launch(
        shader="attention_prefill",
        kernel="attend_wide" if wide else "attend_tile",
        constants=a.layout.constants,
        groups=(ceil_div(max_queries, queries), a.heads, a.sequences),
        threads=(128, 1, 1),
        arguments=(
            reads(a.q), reads(a.k_pool), reads(a.v_pool), reads(a.block_tables),
            reads(a.context_lens), reads(a.query_start), writes(a.out),
        ),
        parameters=a.parameters(1),
        cost=a.cost(
            a.sequences * max_queries, a.max_blocks * a.layout.block_size,
            barriers=2 * ceil_div(a.max_blocks * a.layout.block_size, 32),
            threadgroup_bytes=28_672 if wide else 23_040,
        ),
        rows=a.sequences * max_queries,
        shape=f"{a.heads}/{a.layout.kv_heads} x {a.layout.head_dim}",
    )  # fmt: skip
