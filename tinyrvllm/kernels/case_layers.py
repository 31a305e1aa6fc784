"""Inputs and float64 answers for what a layer does beside multiplications, RoPE and attention."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize

from . import conv, elementwise, embedding, reduce
from .case_matmul import activate, random_weights, scales_apart
from .cases import Prepared, floats, ints
from .launch import whole
from .matmul import SHRINK
from .quant import UNIT, Matrix

if TYPE_CHECKING:
    from ..mtl.device import Device


def _embed(
    device: "Device", rng: np.random.Generator, kernel: str, kind: str, rows: int, columns: int,
    scale: float = 1.0, squares: bool = False, apart: bool = False,
) -> Prepared:  # fmt: skip
    vocabulary = 50
    raw = random_weights(Kind[kind], vocabulary, columns, rng)
    span = whole(device.from_numpy(scales_apart(raw) if apart else raw))
    table = Matrix(span, Kind[kind], vocabulary, columns, apart=apart)
    ids = rng.integers(-1, vocabulary, rows).astype(np.int32)
    ids[0], ids[-1] = vocabulary - 1, 0  # the ends of the table
    w = dequantize(raw, Kind[kind]).reshape(vocabulary, columns).astype(np.float64)
    expected = np.where(ids[:, None] < 0, 0.0, w[ids] * scale)
    y = device.from_numpy(np.full((rows, columns), 7, np.float32))
    sums = device.buffer(4 * rows * embedding.squares_parts(columns)) if squares else None
    launch = embedding.launch(
        ints(device, ids), table, whole(y), rows, scale, whole(sums) if sums else None
    )
    if sums:  # check the partial sums of squares instead of y
        starts = np.arange(0, columns, 32 * UNIT)
        expected, y = np.add.reduceat((expected * SHRINK) ** 2, starts, axis=1), sums
    return Prepared([launch], y, expected, np.abs(expected).max() + 1e-30, 5e-7)


def _rmsnorm(
    device: "Device", rng: np.random.Generator, kernel: str, rows: int, columns: int,
    residual: bool = False, magnitude: float = 1.0,
) -> Prepared:  # fmt: skip
    x = (rng.normal(size=(rows, columns)) * magnitude).astype(np.float32)
    gain, add = rng.normal(size=columns).astype(np.float32), rng.normal(size=x.shape)
    x64, add = x.astype(np.float64), add.astype(np.float32)
    expected = x64 / np.sqrt((x64**2).mean(1, keepdims=True) + 1e-6) * gain
    if residual:
        expected = expected + add
    y = device.buffer(x.nbytes)
    launch = reduce.rmsnorm(
        floats(device, x), floats(device, gain), whole(y), rows, columns, 1e-6,
        floats(device, add) if residual else None,
    )  # fmt: skip
    return Prepared([launch], y, expected, np.abs(expected) + 1, 2e-6)


def _softmax(
    device: "Device", rng: np.random.Generator, kernel: str, rows: int, columns: int,
    masked: float = 0.0,
) -> Prepared:  # fmt: skip
    x = (rng.normal(size=(rows, columns)) * 8).astype(np.float32)
    x[rng.random(x.shape) < masked] = -np.inf
    x64 = x.astype(np.float64)
    peak = x64.max(1, keepdims=True)
    e = np.where(peak == -np.inf, 0.0, np.exp(x64 - np.where(peak == -np.inf, 0.0, peak)))
    expected = e / np.maximum(e.sum(1, keepdims=True), 1e-300)
    y = device.buffer(x.nbytes)
    launch = reduce.softmax(floats(device, x), whole(y), rows, columns)
    return Prepared([launch], y, expected, 1.0, 2e-6)


def _elementwise(
    device: "Device", rng: np.random.Generator, kernel: str, count: int, activation: str = "silu",
    magnitude: float = 3.0,
) -> Prepared:  # fmt: skip
    a, b = ((rng.normal(size=count) * magnitude).astype(np.float32) for _ in range(2))
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    x, other, y = floats(device, a), floats(device, b), device.buffer(4 * count)
    with np.errstate(over="ignore"):
        half = whole(device.from_numpy(a.astype(np.float16)))
    launches = {
        "add": lambda: elementwise.add(x, other, whole(y), count),
        "gate": lambda: elementwise.gate(x, other, whole(y), count, activation),
        "softcap": lambda: elementwise.softcap(x, whole(y), count, 5.0),
        "copy": lambda: elementwise.copy(x, whole(y), count),
        "to_half": lambda: elementwise.to_half(x, whole(y), count),
        "to_float": lambda: elementwise.to_float(half, whole(y), count),
    }
    with np.errstate(over="ignore"):
        expected = {
            "add": lambda: a64 + b64,
            "gate": lambda: activate(activation, a64) * b64,
            "softcap": lambda: 5 * np.tanh(a64 / 5),
            "copy": lambda: a64,
            "to_half": lambda: a.astype(np.float16).astype(np.float64),
            "to_float": lambda: a.astype(np.float16).astype(np.float64),
        }[kernel]()
    exact = kernel in ("copy", "to_half", "to_float")
    dtype = np.dtype(np.float16 if kernel == "to_half" else np.float32)
    return Prepared(
        [launches[kernel]()], y, expected, np.abs(a64 * b64) + np.abs(a64) + 1,
        0.0 if exact else 5e-7, dtype,
    )  # fmt: skip


def _multiply_adds(
    device: "Device", rng: np.random.Generator, kernel: str, count: int, rounds: int
) -> Prepared:
    y = device.buffer(4 * count)
    start = np.arange(count)[:, None] + np.arange(8.0)
    for _ in range(rounds):
        start = start / 2 + 1
    expected = 4 * start.sum(1)
    return Prepared([elementwise.multiply_adds(whole(y), count, rounds)], y, expected, 1.0, 0.0)


def _conv(
    device: "Device", rng: np.random.Generator, kernel: str, rows: tuple[int, ...], channels: int,
    taps: int, fresh: bool = False, magnitude: float = 1.0,
) -> Prepared:  # fmt: skip
    sequences, total, slots = len(rows), sum(rows), len(rows) + 2
    x = (rng.normal(size=(total, 3, channels)) * magnitude).astype(np.float32)
    filter_ = rng.normal(size=(channels, taps)).astype(np.float32)
    state = rng.normal(size=(slots, taps - 1, channels)).astype(np.float32)
    state_slots = rng.permutation(slots)[:sequences].astype(np.int32)
    start = np.concatenate([[0], np.cumsum(rows)])
    positions = np.concatenate([np.arange(n) + (0 if fresh else 5) for n in rows])
    y_want, state_want = np.zeros((total, channels)), state.astype(np.float64)
    for s, n in enumerate(rows):
        if n == 0:  # not in this step: its state stays
            continue
        mine = slice(start[s], start[s] + n)
        b, c, u = x[mine].astype(np.float64).transpose(1, 0, 2)
        old = np.zeros((taps - 1, channels)) if fresh else state_want[state_slots[s]]
        u = np.concatenate([old, b * u])
        y_want[mine] = c * sum(filter_[:, j] * u[j : j + n] for j in range(taps))
        state_want[state_slots[s]] = u[n:]
    out = device.buffer(4 * (y_want.size + state.size))
    both = whole(out)
    y, kept = both.part(0, 4 * y_want.size), both.part(4 * y_want.size, 4 * state.size)
    launches = [
        elementwise.copy(floats(device, state), kept, state.size),
        conv.launch(
            floats(device, x), floats(device, filter_), kept, y, ints(device, start),
            ints(device, positions), ints(device, state_slots), total, sequences, channels, taps,
        ),
    ]  # fmt: skip
    expected = np.concatenate([y_want.ravel(), state_want.ravel()])
    return Prepared(launches, out, expected, np.abs(expected) + magnitude**3, 1e-6)


FAMILIES: dict[str, Callable[..., Prepared]] = {
    **dict.fromkeys(("add", "gate", "softcap", "copy", "to_half", "to_float"), _elementwise),
    "multiply_adds": _multiply_adds, "embed": _embed, "rmsnorm": _rmsnorm, "softmax": _softmax,
    "short_conv": _conv,
}  # fmt: skip
