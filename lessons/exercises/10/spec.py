"""Lesson 10: the rotation, and the write to the paged cache."""

import numpy as np

from lessons.spec import Case, Task, Thread, Watched, case, place, thread_at
from tinyrvllm.kernels import rope
from tinyrvllm.kernels.kv_cache import KvLayout

BASE = 10000.0


def rope_cases(rng: np.random.Generator) -> list[Case]:
    return [
        rope_case(rng, 2, 3, 1, 64, interleaved=True),
        rope_case(rng, 3, 9, 3, 64, interleaved=False),
        rope_case(rng, 4, 2, 2, 16, interleaved=True, padded=True),
        rope_case(rng, 1, 4, 1, 128, interleaved=False, position=5000),
    ]


def rope_case(
    rng: np.random.Generator, rows: int, heads: int, kv_heads: int, head_dim: int,
    interleaved: bool, position: int = 0, padded: bool = False,
) -> Case:  # fmt: skip
    layout = KvLayout(num_blocks=6, block_size=4, kv_heads=kv_heads, head_dim=head_dim, f32=True)
    q, k, v = (
        rng.standard_normal((rows, n, head_dim)).astype(np.float32)
        for n in (heads, kv_heads, kv_heads)
    )
    positions = (position + rng.integers(0, 900, rows)).astype(np.int32)
    slots = rng.permutation(24)[:rows].astype(np.int32)
    if padded:
        slots[1] = -1  # a padded row: nothing may be read or written for it
    frequencies = BASE ** -(np.arange(0, head_dim, 2) / head_dim)
    angle = positions[:, None, None] * frequencies  # [rows, 1, pairs]
    cos, sin = np.cos(angle), np.sin(angle)

    def rotated(x: np.ndarray) -> np.ndarray:
        first, second = pairs(head_dim, interleaved)
        out = x.astype(np.float64)
        out[..., first] = x[..., first] * cos - x[..., second] * sin
        out[..., second] = x[..., first] * sin + x[..., second] * cos
        return out

    kept = slots >= 0
    new_q = np.where(kept[:, None, None], rotated(q), q)
    keys, values = (np.full((24, kv_heads, head_dim), -1.0) for _ in range(2))
    keys[slots[kept]], values[slots[kept]] = rotated(k)[kept], v[kept]
    pool = np.full(layout.nbytes // 4, -1, np.float32)
    all_heads = heads + 2 * kv_heads

    def watched(thread: Thread) -> dict[str, Watched]:
        row, head = thread.group[1], thread.group[0] * 4 + thread.simdgroup
        slot = int(slots[row])
        if head >= all_heads or slot < 0:
            return {"slot": slot}
        first, second = pairs(head_dim, interleaved)
        mine = np.arange(thread.lane, head_dim // 2, 32)
        if head >= heads + kv_heads:
            own = head - heads - kv_heads
            return {
                "slot": slot,
                "to": (slot // 4 * kv_heads + own) * 4 * head_dim + slot % 4 * head_dim,
            }
        source = q[row, head] if head < heads else k[row, head - heads]
        turned = rotated(q)[row, head] if head < heads else rotated(k)[row, head - heads]
        return {
            "slot": slot,
            "d0": first[mine], "d1": second[mine],
            "x0": source[first[mine]], "x1": source[second[mine]],
            "y0": turned[first[mine]], "y1": turned[second[mine]],
            **({"at0": at(first[mine]), "at1": at(second[mine])} if head >= heads else {}),
        }  # fmt: skip

    def at(d: np.ndarray) -> np.ndarray:
        return d // 4 * 16 + d % 4  # in a block of 4 tokens: see kv_cache.h

    def owner(output: int, index: int) -> Thread:
        """Who should write: a lane of the head's simdgroup."""
        if output == 0:
            row, head, d = np.unravel_index(index, new_q.shape)
            pair = int(d) // 2 if interleaved else int(d) % (head_dim // 2)
        else:
            tokens = layout.unpack_k if output == 8 else layout.unpack_v
            where = tokens(np.arange(pool.size, dtype=np.float32))
            slot, kv_head, d = np.argwhere(where == index)[0]
            row = int(np.flatnonzero(slots == slot)[0]) if slot in slots else 0
            head = heads + int(kv_head) + (kv_heads if output == 9 else 0)
            pair = int(d) // 2 if interleaved else int(d) % (head_dim // 2)
            pair = int(d) if output == 9 else pair
        index_in_group = int(head) % 4 * 32 + pair % 32
        return thread_at((128, 1, 1), (int(head) // 4, int(row), 0), index_in_group)

    kind = "interleaved" if interleaved else "half-split"
    return case(
        f"{rows} rows, {heads} + {kv_heads} heads of {head_dim}, {kind}"
        + (", one row of padding" if padded else ""),
        rope.rope_and_store(
            place(q), place(k), place(v), place(rope.turns(frequencies)), place(positions),
            place(slots), place(pool.copy()), place(pool.copy()), layout, rows, heads, head_dim,
            interleaved, (heads * head_dim, kv_heads * head_dim, kv_heads * head_dim),
        ),
        {
            0: new_q.astype(np.float32),
            8: layout.pack_k(keys).astype(np.float32),
            9: layout.pack_v(values).astype(np.float32),
        },
        watched=watched,
        owner=owner,
    )  # fmt: skip


def pairs(head_dim: int, interleaved: bool) -> tuple[np.ndarray, np.ndarray]:
    """The two dimensions of each pair."""
    i = np.arange(head_dim // 2)
    return (2 * i, 2 * i + 1) if interleaved else (i, i + head_dim // 2)


TASKS = [
    Task("10", "rope", "rope_and_store", rope_cases, relative=1e-4, absolute=1e-5, engine="-c 512")
]
