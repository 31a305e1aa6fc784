"""The shape table: one list of cases per kernel, for tests, the checking device and the bench.

A case knows how to make its inputs on a device, which launches compute it, and what float64 numpy
says: `prepare(case, device, rng)`. Inputs are random and nasty where a kernel must not care: block
tables in random order, NaN in slots of the cache that nobody owns, blocks of other sequences.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from . import argmax, attention, elementwise, embedding, gemm, ksplit, matvec, reduce, rope
from .kv_cache import KvLayout
from .launch import Launch, Span, run, whole
from .matmul import FusedNorm, Matmul
from .quant import FLOAT_TILES, WEIGHT_TYPES, Matrix, row_bytes

if TYPE_CHECKING:
    from ..mtl.buffer import Buffer
    from ..mtl.device import Device

Kind = GGMLQuantizationType
Array = NDArray[np.float64]
Value = int | float | bool | str | tuple[int, ...]
MATMULS: dict[str, Callable[[Matmul], Launch]] = {
    "matvec": matvec.launch, "ksplit": ksplit.launch, "gemm": gemm.launch,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One row of the table. `kernel` is what must run: there is no fallback."""

    kernel: str
    shape: tuple[tuple[str, Value], ...]

    def __str__(self) -> str:
        return self.kernel + "".join(f" {name}={value}" for name, value in self.shape)

    def __getitem__(self, name: str) -> Value:
        return dict(self.shape)[name]


def case(kernel: str, **shape: Value) -> Case:
    return Case(kernel, tuple(shape.items()))


@dataclass
class Prepared:
    """A case with its inputs on a device. |got - expected| <= tolerance * scale is asked."""

    launches: list[Launch]
    output: "Buffer"
    expected: Array
    scale: Array | float
    tolerance: float
    dtype: np.dtype = field(default_factory=lambda: np.dtype(np.float32))

    def result(self) -> NDArray:
        return self.output.numpy(self.dtype, self.expected.shape)

    def error(self) -> float:
        """The worst |got - expected| / scale; NaN where only one of the two is NaN counts 1e9."""
        got = self.result().astype(np.float64)
        same = (got == self.expected) | (np.isnan(got) & np.isnan(self.expected))
        with np.errstate(invalid="ignore"):
            ratio = np.where(same, 0.0, np.abs(got - self.expected) / self.scale)
        return float(np.where(np.isnan(ratio), 1e9, ratio).max())


def prepare(case: Case, device: "Device", rng: np.random.Generator) -> Prepared:
    """Inputs, launches and the expected output of a case."""
    family = "matmul" if case.kernel in MATMULS else case.kernel
    return FAMILIES[family](device, rng, case.kernel, **dict(case.shape))


def check(case: Case, device: "Device", seed: int = 0) -> float:
    """Runs a case and returns its error. Raises AssertionError when it is over the tolerance."""
    prepared = prepare(case, device, np.random.default_rng(seed))
    run(device, *prepared.launches)
    error = prepared.error()
    if not error <= prepared.tolerance:
        got, want = prepared.result(), prepared.expected
        bad = np.abs(got - want) / prepared.scale
        at = np.unravel_index(np.nanargmax(np.where(np.isnan(bad), 1e9, bad)), want.shape)
        where = tuple(int(i) for i in at)
        raise AssertionError(
            f"{case}: error {error:.2e}, expected at most {prepared.tolerance:.0e}; "
            f"at {where}: expected {want[at]!r}, found {got[at]!r}"
        )
    return error


def random_weights(kind: Kind, rows: int, columns: int, rng: np.random.Generator) -> NDArray:
    """Random bytes of a weight matrix [rows, row_bytes] with scales of a sane size."""
    nbytes = row_bytes(kind, columns)
    if kind in (Kind.F32, Kind.F16, Kind.BF16):
        values = rng.normal(size=(rows, columns)).astype(np.float32)
        return np.asarray(quantize(values, kind)).view(np.uint8).reshape(rows, nbytes)
    block, size = GGML_QUANT_SIZES[kind]
    raw = rng.integers(0, 256, (rows * columns // block, size), np.uint8)
    halves = {  # byte offsets of the half-precision scales
        Kind.Q8_0: (0,), Kind.Q4_0: (0,), Kind.Q5_0: (0,), Kind.Q6_K: (208,),
    }.get(kind, (0, 2))  # fmt: skip
    for at in halves:
        scales = rng.uniform(-0.1, 0.1, (len(raw), 1)).astype(np.float16)
        raw[:, at : at + 2] = scales.view(np.uint8)
    return raw.reshape(rows, nbytes)


def _floats(device: "Device", array: NDArray) -> Span:
    return whole(device.from_numpy(np.asarray(array, np.float32)))


def _ints(device: "Device", array: NDArray | list[int]) -> Span:
    return whole(device.from_numpy(np.asarray(array, np.int32)))


def _activate(kind: str, x: Array) -> Array:
    if kind == "silu":
        return x / (1 + np.exp(-x))
    if kind == "gelu_tanh":
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    if kind == "gelu":
        from math import erf

        return 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2)))
    return x


def _matmul(
    device: "Device", rng: np.random.Generator, kernel: str, kind: str, rows: int, outputs: int,
    inputs: int, bias: bool = False, residual: bool = False, activation: str = "",
    norm: bool = False, squares: bool = False, magnitude: float = 1.0,
) -> Prepared:  # fmt: skip
    weight_kind = Kind[kind]

    def matrix() -> tuple[Matrix, Array]:
        raw = random_weights(weight_kind, outputs, inputs, rng)
        values = dequantize(raw, weight_kind).reshape(outputs, inputs).astype(np.float64)
        return Matrix(whole(device.from_numpy(raw)), weight_kind, outputs, inputs), values

    weight, w = matrix()
    x = (rng.normal(size=(rows, inputs)) * magnitude).astype(np.float32)
    offset = rng.normal(size=outputs).astype(np.float32)
    y = device.from_numpy(rng.normal(size=(rows, outputs)).astype(np.float32))
    before = y.numpy(np.float32, (rows, outputs)).astype(np.float64)
    x64, fused, squares_span = x.astype(np.float64), None, None
    if norm:  # x * gain / rms(x), the sum of squares given in three parts
        gain = rng.uniform(0.5, 1.5, inputs).astype(np.float32)
        parts = np.stack([(p**2).sum(1) for p in np.array_split(x64, 3, axis=1)], axis=1)
        fused = FusedNorm(_floats(device, gain), _floats(device, parts), 3, 1e-5)
        x64 = x64 * gain / np.sqrt((x64**2).mean(1, keepdims=True) + 1e-5)
    expected, scale = x64 @ w.T, np.abs(x64) @ np.abs(w).T
    up = None
    if activation:
        up, w_up = matrix()
        gate, other = expected, x64 @ w_up.T
        expected = _activate(activation, gate) * other
        scale = scale * np.abs(other) * 1.2 + np.abs(gate) * (np.abs(x64) @ np.abs(w_up).T)
    if bias:
        expected, scale = expected + offset, scale + np.abs(offset)
    if residual:
        expected, scale = expected + before, scale + np.abs(before)
    shape = Matmul(
        _floats(device, x), weight, whole(y), rows, up=up, activation=activation or "none",
        bias=_floats(device, offset) if bias else None, residual=whole(y) if residual else None,
        norm=fused,
    )  # fmt: skip
    if squares:  # check the partial sums instead of y
        parts_out = matvec.squares_parts(shape)
        target = device.buffer(4 * rows * parts_out)
        squares_span = whole(target)
        width = -(-outputs // parts_out)
        padded = np.zeros((rows, parts_out * width))
        padded[:, :outputs] = expected
        expected = (padded.reshape(rows, parts_out, width) ** 2).sum(2)
        scale = (np.abs(padded).reshape(rows, parts_out, width).max(2) + 1) ** 2 * width
        shape = Matmul(
            shape.x, weight, shape.y, rows, bias=shape.bias, residual=shape.residual,
            norm=fused, squares=squares_span,
        )  # fmt: skip
        y = target
    halves = kernel != "matvec" and weight_kind not in (*FLOAT_TILES, Kind.F16)
    return Prepared(
        [MATMULS[kernel](shape)], y, expected, scale + 1e-30, 5e-4 if halves else 1e-6
    )


def _embed(
    device: "Device", rng: np.random.Generator, kernel: str, kind: str, rows: int, columns: int,
    scale: float = 1.0,
) -> Prepared:  # fmt: skip
    vocabulary = 50
    raw = random_weights(Kind[kind], vocabulary, columns, rng)
    table = Matrix(whole(device.from_numpy(raw)), Kind[kind], vocabulary, columns)
    ids = rng.integers(-1, vocabulary, rows).astype(np.int32)
    w = dequantize(raw, Kind[kind]).reshape(vocabulary, columns).astype(np.float64)
    expected = np.where(ids[:, None] < 0, 0.0, w[ids] * scale)
    y = device.from_numpy(np.full((rows, columns), 7, np.float32))
    launch = embedding.launch(_ints(device, ids), table, whole(y), rows, scale)
    return Prepared([launch], y, expected, np.abs(expected).max() + 1, 5e-7)


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
        _floats(device, x), _floats(device, gain), whole(y), rows, columns, 1e-6,
        _floats(device, add) if residual else None,
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
    launch = reduce.softmax(_floats(device, x), whole(y), rows, columns)
    return Prepared([launch], y, expected, 1.0, 2e-6)


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
    safe = np.where(np.isnan(x), -np.inf, x)
    best = np.where(np.isnan(x), -1.0, safe == safe.max(1, keepdims=True)).argmax(1)
    best = np.where(np.isnan(x).all(1), 0, best)
    flags = np.isnan(x).any(1) * argmax.HAS_NAN + (safe == -np.inf).all(1) * argmax.ALL_MASKED
    out = device.from_numpy(np.full(2 * rows, 7, np.int32))
    winners = device.buffer(rows * argmax.chunks(columns) * argmax.WINNER_BYTES)
    both = whole(out)
    launches = argmax.launches(
        _floats(device, x), whole(winners), both.part(0, 4 * rows), both.part(4 * rows, 4 * rows),
        rows, columns,
    )  # fmt: skip
    expected = np.concatenate([best, flags]).astype(np.float64)
    return Prepared(list(launches), out, expected, 1.0, 0.0, np.dtype(np.int32))


def _elementwise(
    device: "Device", rng: np.random.Generator, kernel: str, count: int, activation: str = "silu",
    magnitude: float = 3.0,
) -> Prepared:  # fmt: skip
    a, b = ((rng.normal(size=count) * magnitude).astype(np.float32) for _ in range(2))
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    x, other, y = _floats(device, a), _floats(device, b), device.buffer(4 * count)
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
            "gate": lambda: _activate(activation, a64) * b64,
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


def _rope(
    device: "Device", rng: np.random.Generator, kernel: str, rows: int, heads: int, kv_heads: int,
    head_dim: int, rope_dim: int, interleaved: bool = False, norm: bool = False, f32: bool = False,
    position: int = 0, block_size: int = 16,
) -> Prepared:  # fmt: skip
    layout = KvLayout(rows // block_size + 2, block_size, kv_heads, head_dim, f32)
    width = (heads + 2 * kv_heads) * head_dim
    qkv = rng.normal(size=(rows, heads + 2 * kv_heads, head_dim)).astype(np.float32)
    positions = (position + rng.permutation(rows)).astype(np.int32)
    slots = rng.permutation(layout.num_blocks * block_size)[:rows].astype(np.int32)
    slots[rows // 2] = -1 if rows > 1 else slots[0]
    frequencies = 10000.0 ** (-np.arange(rope_dim // 2) / max(rope_dim // 2, 1))
    gains = rng.uniform(0.5, 1.5, (2, head_dim)).astype(np.float32)

    expected = qkv.astype(np.float64)
    if norm:
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
    live = slots >= 0
    q_want = np.where(live[:, None, None], expected[:, :heads], qkv[:, :heads])
    caches = np.zeros((2, layout.num_blocks * block_size, kv_heads, head_dim), layout.dtype)
    caches[0][slots[live]] = expected[live, heads : heads + kv_heads]
    caches[1][slots[live]] = expected[live, heads + kv_heads :]
    want = [q_want.ravel(), layout.pack_k(caches[0]).ravel(), layout.pack_v(caches[1]).ravel()]

    # One buffer holds qkv and both pools, and a last launch gathers them as floats.
    x = whole(device.from_numpy(qkv))
    pools = [whole(device.buffer(layout.nbytes)) for _ in range(2)]
    head_bytes = 4 * head_dim
    qkv_spans = [
        x.part(at * head_bytes, x.nbytes - at * head_bytes) for at in (0, heads, heads + kv_heads)
    ]
    gain_spans = (_floats(device, gains[0]), _floats(device, gains[1]))
    launch = rope.rope_and_store(
        *qkv_spans, _floats(device, rope.turns(frequencies)) if half else x,
        _ints(device, positions), _ints(device, slots), *pools, layout, rows, heads, rope_dim,
        interleaved, (width, width, width), gain_spans if norm else None, 1e-6,
    )  # fmt: skip
    counts = [rows * width, *(layout.nbytes // layout.dtype.itemsize,) * 2]
    gathered = device.buffer(4 * sum(counts))
    out, at, launches = whole(gathered), 0, [launch]
    for source, count in zip((x, *pools), counts, strict=True):
        to = out.part(4 * at, 4 * count)
        is_half = source is not x and not f32
        launches.append(
            elementwise.to_float(source, to, count) if is_half
            else elementwise.copy(source, to, count)
        )  # fmt: skip
        at += count
    full = qkv.astype(np.float64)
    full[:, :heads] = q_want
    expected_all = np.concatenate([full.ravel(), *want[1:]]).astype(np.float64)
    return Prepared(launches, gathered, expected_all, np.abs(expected_all) + 1, 1e-6 if f32 else 6e-4)


FAMILIES: dict[str, Callable[..., Prepared]] = {
    "matmul": _matmul, "embed": _embed, "rmsnorm": _rmsnorm, "softmax": _softmax,
    "argmax": _argmax, "rope": _rope,
    **dict.fromkeys(("add", "gate", "softcap", "copy", "to_half", "to_float"), _elementwise),
}  # fmt: skip
