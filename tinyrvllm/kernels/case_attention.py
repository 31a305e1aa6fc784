"""Inputs and float64 answers for RoPE and the attention kernels.

Nasty where a kernel must not care: block tables in random order, NaN in slots that nobody owns.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from . import attention, attention_naive, elementwise, rope
from .cases import Array, Prepared, floats, ints
from .kv_cache import KvLayout
from .launch import Launch, Span, whole

if TYPE_CHECKING:
    from ..mtl.buffer import Buffer
    from ..mtl.device import Device


def _rope(
    device: "Device", rng: np.random.Generator, kernel: str, rows: int, heads: int, kv_heads: int,
    head_dim: int, rope_dim: int, interleaved: bool = False, norm: bool = False, f32: bool = False,
    position: int = 0, block_size: int = 16, magnitude: float = 1.0,
) -> Prepared:  # fmt: skip
    layout = KvLayout(rows // block_size + 2, block_size, kv_heads, head_dim, f32)
    width = (heads + 2 * kv_heads) * head_dim
    qkv = rng.normal(size=(rows, heads + 2 * kv_heads, head_dim)) * magnitude
    qkv = qkv.astype(np.float32)
    positions = (position + rng.permutation(rows)).astype(np.int32)
    others = 1 + rng.permutation(layout.num_blocks * block_size - 1)
    slots = np.array([0, *others[: rows - 1]], np.int32)  # 0 is a place like any other
    slots[rows // 2] = -1 if rows > 1 else slots[0]
    frequencies = 10000.0 ** (-np.arange(rope_dim // 2) / max(rope_dim // 2, 1))
    gains = rng.uniform(0.5, 1.5, (2, head_dim)).astype(np.float32)

    expected = turned(qkv, kv_heads, positions, frequencies, interleaved, gains if norm else None)
    live = slots >= 0
    q_want = np.where(live[:, None, None], expected[:, :heads], qkv[:, :heads])
    caches = np.zeros((2, layout.num_blocks * block_size, kv_heads, head_dim), layout.dtype)
    caches[0][slots[live]] = expected[live, heads : heads + kv_heads]
    caches[1][slots[live]] = expected[live, heads + kv_heads :]
    want = [q_want.ravel(), layout.pack_k(caches[0]).ravel(), layout.pack_v(caches[1]).ravel()]

    x = whole(device.from_numpy(qkv))
    k_pool, v_pool = (whole(device.buffer(layout.nbytes)) for _ in range(2))
    head_bytes = 4 * head_dim
    q, k, v = (
        x.part(at * head_bytes, x.nbytes - at * head_bytes) for at in (0, heads, heads + kv_heads)
    )
    gain_spans = (floats(device, gains[0]), floats(device, gains[1]))
    launch = rope.rope_and_store(
        q, k, v, floats(device, rope.turns(frequencies)) if rope_dim else x,
        ints(device, positions), ints(device, slots), k_pool, v_pool, layout, rows, heads,
        rope_dim, interleaved, (width, width, width), gain_spans if norm else None, 1e-6,
    )  # fmt: skip
    gathered, copies = together(device, x, k_pool, v_pool, f32)
    full = qkv.astype(np.float64)
    full[:, :heads] = q_want
    expected_all = np.concatenate([full.ravel(), *want[1:]]).astype(np.float64)
    scale = np.abs(expected_all) + magnitude
    return Prepared([launch, *copies], gathered, expected_all, scale, 1e-6 if f32 else 6e-4)


def together(
    device: "Device", x: Span, k_pool: Span, v_pool: Span, f32: bool
) -> tuple["Buffer", list[Launch]]:
    """What x and both pools hold, as floats in one buffer, once the launches have run."""
    counts = [span.nbytes // (4 if f32 or span is x else 2) for span in (x, k_pool, v_pool)]
    gathered = device.buffer(4 * sum(counts))
    at, launches = 0, []
    for source, count in zip((x, k_pool, v_pool), counts, strict=True):
        convert = elementwise.copy if f32 or source is x else elementwise.to_float
        launches.append(convert(source, whole(gathered).part(4 * at, 4 * count), count))
        at += count
    return gathered, launches


def turned(
    qkv: NDArray, kv_heads: int, positions: NDArray, frequencies: Array, interleaved: bool,
    gains: NDArray | None,
) -> Array:  # fmt: skip
    """Queries and keys [rows, heads + 2 * kv_heads, head_dim] normed and rotated, values as they are."""
    expected, rope_dim = qkv.astype(np.float64), 2 * len(frequencies)
    heads = qkv.shape[1] - 2 * kv_heads
    if gains is not None:
        rms = np.sqrt((expected**2).mean(-1, keepdims=True) + 1e-6)
        expected[:, :heads] = (expected / rms)[:, :heads] * gains[0]
        expected[:, heads:-kv_heads] = (expected / rms)[:, heads:-kv_heads] * gains[1]
    angle = positions[:, None, None] * frequencies
    half = rope_dim // 2
    first = slice(0, rope_dim, 2) if interleaved else slice(0, half)
    second = slice(1, rope_dim, 2) if interleaved else slice(half, rope_dim)
    rotated = expected[:, :-kv_heads]
    a, b = rotated[..., first].copy(), rotated[..., second].copy()
    rotated[..., first] = a * np.cos(angle) - b * np.sin(angle)
    rotated[..., second] = a * np.sin(angle) + b * np.cos(angle)
    return expected


def attend(
    q: Array, k: Array, v: Array, scale: float, window: int = 0, softcap: float = 0.0
) -> Array:
    """Causal attention of the last rows of a sequence.

    q: [queries, heads, head_dim]; k, v: [keys, kv_heads, head_dim]. Returns q's shape.
    """
    ratio = q.shape[1] // k.shape[1]
    scores = np.einsum("nhd,khd->nhk", q, k.repeat(ratio, 1)) * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    keys = np.arange(len(k))
    position = (len(k) - len(q) + np.arange(len(q)))[:, None]
    visible = (keys <= position) & ((keys > position - window) | (window == 0))
    scores = np.where(visible[:, None], scores, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("nhk,khd->nhd", e / e.sum(-1, keepdims=True), v.repeat(ratio, 1))


def _attention(
    device: "Device", rng: np.random.Generator, kernel: str, contexts: tuple[int, ...],
    heads: int, kv_heads: int, head_dim: int, queries: tuple[int, ...] = (), window: int = 0,
    softcap: float = 0.0, f32: bool = False, block_size: int = 16, unused: float = np.nan,
    bound: int = 0, magnitude: float = 1.0, spare: int = 3,
) -> Prepared:  # fmt: skip
    """queries: rows of each sequence, 1 if left out. bound: what max_context is rounded up to.
    spare: blocks of the pool that nobody owns; with none, what is read past a row is past the pool.
    """
    queries = queries or (1,) * len(contexts)
    blocks = [-(-n // block_size) for n in contexts]
    layout = KvLayout(sum(blocks) + spare, block_size, kv_heads, head_dim, f32)
    order, max_blocks = rng.permutation(layout.num_blocks), max(blocks) + 1
    tables = np.full((len(contexts), max_blocks), -1, np.int32)  # -1: nobody's
    caches = np.full((2, layout.num_blocks * block_size, kv_heads, head_dim), unused, layout.dtype)
    start = np.concatenate([[0], np.cumsum(queries)]).astype(np.int32)
    q = rng.normal(size=(start[-1], heads, head_dim)).astype(np.float32)
    expected, scale = np.full(q.shape, 7.0), head_dim**-0.5
    serves_one = kernel in ("attend_one", "attend_spread")
    for s, (context, count) in enumerate(zip(contexts, queries, strict=True)):
        tables[s, : blocks[s]] = order[sum(blocks[:s]) :][: blocks[s]]
        kv = (rng.normal(size=(2, context, kv_heads, head_dim)) * magnitude).astype(layout.dtype)
        tokens = np.arange(context)
        slots = tables[s, tokens // block_size] * block_size + tokens % block_size
        caches[:, slots] = kv
        if context and (count == 1) == serves_one or kernel == "naive":
            mine = slice(start[s], start[s + 1])
            k, v = kv.astype(np.float64)
            expected[mine] = attend(q[mine].astype(np.float64), k, v, scale, window, softcap)
    out = device.from_numpy(np.full(q.shape, 7, np.float32))
    k_pool = whole(device.from_numpy(layout.pack_k(caches[0])))
    v_pool = whole(device.from_numpy(layout.pack_v(caches[1])))
    problem = attention.Attention(
        floats(device, q), k_pool, v_pool, ints(device, tables), ints(device, list(contexts)),
        ints(device, start), whole(out), layout, heads, len(contexts), max_blocks, scale,
        window, softcap, spread=kernel == "attend_spread",
    )  # fmt: skip
    longest = max(*contexts, bound) if bound else max(contexts)
    launches: list[Launch]
    if serves_one:
        partial = whole(device.buffer(attention.partial_bytes(problem, longest)))
        launches = attention.decode(problem, longest, partial)
    elif kernel == "naive":
        nbytes = attention_naive.scratch_bytes(problem, queries[0], contexts[0])
        scratch = whole(device.buffer(nbytes))
        launches = attention_naive.launches(problem, scratch, queries[0], contexts[0])
    else:
        launches = [attention.prefill(problem, max(queries))]
        if launches[0].kernel != kernel:
            raise ValueError(f"{kernel} does not serve this shape; {launches[0].kernel} does")
    return Prepared(launches, out, expected, magnitude + np.abs(expected), 4e-6)


def _wider(x: NDArray, more: int) -> NDArray:
    """Rows [rows, heads * head_dim + more]; NaN in what is more."""
    rows = x.reshape(len(x), -1)
    return np.hstack([rows, np.full((len(rows), more), np.nan, np.float32)])


def _unrotated(
    device: "Device", rng: np.random.Generator, kernel: str, contexts: tuple[int, ...],
    heads: int, kv_heads: int, head_dim: int, rope_dim: int, interleaved: bool = False,
    norm: bool = False, window: int = 0, softcap: float = 0.0, f32: bool = False,
    block_size: int = 16, bound: int = 0,
) -> Prepared:  # fmt: skip
    """Decoding that rotates its queries and newest keys: the result, and both pools."""
    rows, blocks = len(contexts), [-(-n // block_size) for n in contexts]
    layout = KvLayout(sum(blocks) + 2, block_size, kv_heads, head_dim, f32)
    order, max_blocks = rng.permutation(layout.num_blocks), max(blocks) + 1
    tables = np.full((rows, max_blocks), -1, np.int32)  # -1: nobody's
    slots = layout.num_blocks * block_size
    caches = np.full((2, slots, kv_heads, head_dim), np.nan, layout.dtype)
    qkv = rng.normal(size=(rows, heads + 2 * kv_heads, head_dim)).astype(np.float32)
    frequencies = 10000.0 ** (-np.arange(rope_dim // 2) / max(rope_dim // 2, 1))
    gains = rng.uniform(0.5, 1.5, (2, head_dim)).astype(np.float32)
    positions = np.maximum(np.array(contexts) - 1, 0)
    after = turned(qkv, kv_heads, positions, frequencies, interleaved, gains if norm else None)
    out, want_caches = np.full((rows, heads, head_dim), 7.0), caches.copy()
    for s, context in enumerate(contexts):
        tables[s, : blocks[s]] = order[sum(blocks[:s]) :][: blocks[s]]
        if context == 0:  # a padded row: nothing is read or written
            continue
        tokens = np.arange(context)
        places = tables[s, tokens // block_size] * block_size + tokens % block_size
        kv = rng.normal(size=(2, context, kv_heads, head_dim)).astype(layout.dtype)
        caches[:, places[:-1]] = kv[:, :-1]
        kv[:, -1] = after[s, heads:].reshape(2, kv_heads, head_dim)
        want_caches[:, places] = kv
        k, v = kv.astype(np.float64)
        q = after[s, None, :heads]
        out[s] = attend(q, k, v, head_dim**-0.5, window, softcap)[0]
    x, result = whole(device.from_numpy(qkv)), whole(device.from_numpy(np.full(out.shape, 7, np.float32)))
    k_pool = whole(device.from_numpy(layout.pack_k(caches[0])))
    v_pool = whole(device.from_numpy(layout.pack_v(caches[1])))
    k_rows, v_rows = (_wider(qkv[:, at : at + kv_heads], 4 * n) for n, at in enumerate((heads, heads + kv_heads), 1))
    unrotated = rope.Unrotated(
        floats(device, k_rows), floats(device, v_rows),
        floats(device, rope.turns(frequencies)) if rope_dim else x, rope_dim, interleaved,
        (k_rows.shape[1], v_rows.shape[1]),
        (floats(device, gains[0]), floats(device, gains[1])) if norm else None, 1e-6,
    )  # fmt: skip
    problem = attention.Attention(
        x, k_pool, v_pool, ints(device, tables), ints(device, list(contexts)),
        ints(device, list(range(rows + 1))), result, layout, heads, rows, max_blocks, head_dim**-0.5,
        window, softcap, q_stride=qkv[0].size, spread=True, unrotated=unrotated,
    )  # fmt: skip
    longest = max(*contexts, bound)
    partial = whole(device.buffer(attention.partial_bytes(problem, longest)))
    launches = attention.decode(problem, longest, partial)
    gathered, copies = together(device, result, k_pool, v_pool, f32)
    pools = layout.pack_k(want_caches[0]).ravel(), layout.pack_v(want_caches[1]).ravel()
    expected = np.concatenate([out.ravel(), *pools]).astype(np.float64)
    scale = 1 + np.abs(expected)
    exact = f32 or (rope_dim == 0 and not norm)  # else a number may be rounded the other way
    return Prepared([*launches, *copies], gathered, expected, scale, 4e-6 if exact else 6e-4)


FAMILIES: dict[str, Callable[..., Prepared]] = {
    "rope": _rope, "attend_unrotated": _unrotated,
    **dict.fromkeys(
        ("attend_one", "attend_spread", "attend_tile", "attend_wide", "naive"), _attention
    ),
}
