"""Inputs and exact answers for the kernels that choose from rows: argmax, its step, top-k."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from . import argmax, step, top_k
from .cases import Prepared, floats, ints
from .launch import whole

if TYPE_CHECKING:
    from ..mtl.device import Device


def _best_of(x: NDArray) -> tuple[NDArray, NDArray]:
    """Index and flags of each row: NaN never wins, the lowest index wins a tie."""
    is_nan = np.isnan(x)
    safe = np.where(is_nan, -np.inf, x)
    best = np.where(is_nan, -1.0, safe == safe.max(1, keepdims=True)).argmax(1)
    best = np.where(is_nan.all(1), 0, best)
    return best, is_nan.any(1) * argmax.HAS_NAN + (safe == -np.inf).all(1) * argmax.ALL_MASKED


def _argmax(
    device: "Device", rng: np.random.Generator, kernel: str, rows: int, columns: int,
    values: str = "ties",
) -> Prepared:  # fmt: skip
    x = rng.integers(-3, 4, (rows, columns)).astype(np.float32)
    if values == "nan":
        x[rng.random(x.shape) < 0.3] = np.nan
    elif values == "all_nan":
        x[:] = np.nan
    elif values == "masked":
        x[:] = -np.inf
        x[:, 0] = np.nan
    best, flags = _best_of(x)
    out = device.from_numpy(np.full(2 * rows, 7, np.int32))
    winners = device.buffer(rows * argmax.chunks(columns) * argmax.WINNER_BYTES)
    both = whole(out)
    launches = argmax.launches(
        floats(device, x), whole(winners), both.part(0, 4 * rows), both.part(4 * rows, 4 * rows),
        rows, columns,
    )  # fmt: skip
    expected = np.concatenate([best, flags]).astype(np.float64)
    return Prepared(list(launches), out, expected, 1.0, 0.0, np.dtype(np.int32))


def _advance(
    device: "Device", rng: np.random.Generator, kernel: str, rows: int, columns: int,
    block_size: int = 16, blocks: int = 4,
) -> Prepared:  # fmt: skip
    """Row 1 is padding, the last row is at the end of its block table."""
    x = rng.integers(-3, 4, (rows, columns)).astype(np.float32)
    x[0, rng.integers(columns)] = np.nan
    best, flags = _best_of(x)
    tables = rng.permutation(rows * blocks).reshape(rows, blocks).astype(np.int32)
    positions = rng.integers(0, block_size * blocks - 1, rows)
    positions[-1] = block_size * blocks - 1
    # [ids | positions | context lengths | slots | index and flags of each row]
    before = np.full((6, rows), 7, np.int32)
    before[0], before[1] = np.arange(rows), positions  # 0 is a token like any other
    if rows > 1:
        before[0, 1] = -1
    live, after, places = before[0] >= 0, positions + 1, np.arange(rows)
    block = np.minimum(after // block_size, blocks - 1)
    slots = tables[places, block] * block_size + after % block_size
    slots = np.where(after < block_size * blocks, slots, -1)
    results = np.stack([best, flags], axis=1)
    expected = before.astype(np.float64)
    expected[:4, live] = np.stack([best, after, after + 1, slots])[:, live]
    expected[4:].reshape(rows, 2)[live] = results[live]
    out, nbytes = device.from_numpy(before), 4 * rows
    ids, at, lengths, to = (whole(out).part(i * nbytes, nbytes) for i in range(4))
    winners = whole(device.buffer(rows * argmax.chunks(columns) * argmax.WINNER_BYTES))
    launches = [
        argmax.chunk_winners(floats(device, x), winners, rows, columns),
        step.advance(
            winners, ids, at, lengths, to, ints(device, tables), whole(out).part(4 * nbytes, 2 * nbytes),
            rows, argmax.chunks(columns), block_size, blocks,
        ),
    ]  # fmt: skip
    return Prepared(launches, out, expected, 1.0, 0.0, np.dtype(np.int32))


def _top_k(
    device: "Device", rng: np.random.Generator, kernel: str, rows: int, columns: int, k: int,
    values: str = "ties",
) -> Prepared:  # fmt: skip
    x = rng.integers(-5, 6, (rows, columns)).astype(np.float32)
    if values == "normal":
        x = rng.normal(size=x.shape).astype(np.float32)
    elif values == "nan":
        x[rng.random(x.shape) < 0.3] = np.nan
        x[rng.random(x.shape) < 0.3] = -np.inf
    order = np.argsort(-np.where(np.isnan(x), -np.inf, x) + 0.0, axis=1, kind="stable")
    if values == "nan":  # NaN after -inf
        order = np.stack([np.lexsort((np.arange(columns), -np.nan_to_num(r, nan=-np.inf), np.isnan(r)))
                          for r in x])  # fmt: skip
    best = order[:, :k]
    out = device.buffer(8 * rows * k)
    both = whole(out)
    launch = top_k.launch(
        floats(device, x), both.part(0, 4 * rows * k), both.part(4 * rows * k, 4 * rows * k),
        rows, columns, k,
    )  # fmt: skip
    got_values = np.take_along_axis(x, best, 1)
    bits = np.concatenate([got_values.ravel().view(np.int32), best.ravel().astype(np.int32)])
    return Prepared([launch], out, bits.astype(np.float64), 1.0, 0.0, np.dtype(np.int32))


FAMILIES: dict[str, Callable[..., Prepared]] = {
    "argmax": _argmax,
    "advance": _advance,
    "top_k": _top_k,
}
