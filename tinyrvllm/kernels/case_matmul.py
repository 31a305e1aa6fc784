"""Inputs and float64 answers for the matrix multiplications, and the weights that others read, too."""

import dataclasses
from collections.abc import Callable
from math import erf
from typing import TYPE_CHECKING

import numpy as np
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from . import arrange, gemm, gemm_tensor, ksplit, matvec
from .cases import Array, Prepared, floats
from .launch import Launch, Span, whole
from .matmul import SHRINK, FusedNorm, Matmul
from .quant import FLOAT_TILES, UNIT, Matrix, can_be_apart, joined, row_bytes

if TYPE_CHECKING:
    from ..mtl.device import Device

MATMULS: dict[str, Callable[..., Launch]] = {
    "matvec": matvec.launch, "ksplit": ksplit.launch, "gemm": gemm.launch,
    "gemm_tensor": gemm_tensor.launch,
}  # fmt: skip


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


def scales_apart(raw: NDArray) -> NDArray:
    """Rows of Q8_0 [rows, row_bytes] with their scales behind their weights."""
    blocks = raw.reshape(len(raw), -1, 34)
    return np.hstack([part.reshape(len(raw), -1) for part in (blocks[..., 2:], blocks[..., :2])])


def _arrange(
    device: "Device", rng: np.random.Generator, kernel: str, kind: str, rows: int, columns: int
) -> Prepared:
    raw = random_weights(Kind[kind], rows, columns, rng)
    to = device.buffer(raw.nbytes)
    launch = arrange.launch(whole(device.from_numpy(raw)), whole(to), Kind[kind], rows, columns)
    expected = scales_apart(raw) if can_be_apart(Kind[kind], columns) else raw
    return Prepared([launch], to, expected.astype(np.float64), 1.0, 0.0, np.dtype(np.uint8))


def activate(kind: str, x: Array) -> Array:
    if kind == "silu":
        return x / (1 + np.exp(-x))
    if kind == "gelu_tanh":
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    if kind == "gelu":
        return 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2)))
    return x


def _in_parts(
    device: "Device", raw: NDArray, kind: Kind, inputs: int, outputs: tuple[int, ...], apart: bool
) -> Matrix:
    """One matrix of several that lie in a file in another order, at multiples of 32 bytes."""
    pieces = np.split(raw, np.cumsum(outputs)[:-1])
    places, file = [0] * len(pieces), b""
    for number in reversed(range(len(pieces))):
        places[number] = len(file)
        file += pieces[number].tobytes()
        file += bytes(-len(file) % 32)
    buffer = device.from_numpy(np.frombuffer(file, np.uint8))
    spans = [Span(buffer, at, piece.nbytes) for at, piece in zip(places, pieces, strict=True)]
    found = joined(
        [Matrix(s, kind, n, inputs, (), apart) for s, n in zip(spans, outputs, strict=True)]
    )
    assert found is not None  # of one type, in one buffer
    return found


def _squares(y: Array, scale: Array, width: int) -> tuple[Array, Array]:
    """Sums of y^2 over each `width` columns, and their scale where y's is `scale`."""
    starts = np.arange(0, y.shape[1], width)
    scales = 2 * np.abs(y) * scale + 1e-6 * scale**2
    return np.add.reduceat(y**2, starts, axis=1), np.add.reduceat(scales, starts, axis=1)


def _matmul(
    device: "Device", rng: np.random.Generator, kernel: str, kind: str, rows: int, outputs: int,
    inputs: int, bias: bool = False, residual: bool = False, activation: str = "",
    norm: bool = False, squares: bool = False, magnitude: float = 1.0, simdgroups: int = 0,
    join: tuple[int, ...] = (), apart: bool = False,
) -> Prepared:  # fmt: skip
    weight_kind = Kind[kind]
    more = {"simdgroups": simdgroups} if simdgroups else {}

    def matrix() -> tuple[Matrix, Array]:
        raw = random_weights(weight_kind, outputs, inputs, rng)
        values = dequantize(raw, weight_kind).reshape(outputs, inputs).astype(np.float64)
        raw = scales_apart(raw) if apart else raw
        if join:
            return _in_parts(device, raw, weight_kind, inputs, join, apart), values
        span = whole(device.from_numpy(raw))
        return Matrix(span, weight_kind, outputs, inputs, apart=apart), values

    weight, w = matrix()
    x = (rng.normal(size=(rows, inputs)) * magnitude).astype(np.float32)
    offset = rng.normal(size=outputs).astype(np.float32)
    y = device.from_numpy(rng.normal(size=(rows, outputs)).astype(np.float32))
    before = y.numpy(np.float32, (rows, outputs)).astype(np.float64)
    x64, fused = x.astype(np.float64), None
    if norm:  # x * gain / rms(x), the sum of squares given in parts
        gain = rng.uniform(0.5, 1.5, inputs).astype(np.float32)
        count = 1152 if simdgroups and inputs % UNIT == 0 else 3  # more than a turn of loads
        pieces = np.array_split(x64 * SHRINK, count, axis=1)
        parts = np.stack([(piece**2).sum(1) for piece in pieces], axis=1)
        fused = FusedNorm(
            None if simdgroups else floats(device, gain), floats(device, parts), count, 1e-5
        )
        rms = np.sqrt((x64**2).mean(1, keepdims=True) + 1e-5)
        if simdgroups:  # x comes multiplied
            x = x * gain
            x64 = x.astype(np.float64) / rms
        else:
            x64 = x64 * gain / rms
    expected, scale = x64 @ w.T, np.abs(x64) @ np.abs(w).T
    up = None
    if activation:
        up, w_up = matrix()
        gate, other = expected, x64 @ w_up.T
        expected = activate(activation, gate) * other
        scale = scale * np.abs(other) * 1.2 + np.abs(gate) * (np.abs(x64) @ np.abs(w_up).T)
    if bias:
        expected, scale = expected + offset, scale + np.abs(offset)
    if residual:
        expected, scale = expected + before, scale + np.abs(before)
    shape = Matmul(
        floats(device, x), weight, whole(y), rows, up=up, activation=activation or "none",
        bias=floats(device, offset) if bias else None, residual=whole(y) if residual else None,
        norm=fused,
    )  # fmt: skip
    if squares:  # check what the next norm wants instead of y
        width = matvec.squares_width(shape, **more)
        sums, sums_scale = _squares(expected * SHRINK, scale * SHRINK, width)
        next_weight, stride = None, 0
        if simdgroups:  # y * gain, then the sums
            gain = rng.uniform(0.5, 1.5, outputs).astype(np.float32)
            next_weight = floats(device, gain)
            stride = matvec.next_stride(shape, simdgroups)
            unused = np.zeros((rows, stride - outputs - sums.shape[1]))
            sums = np.hstack([expected * gain, sums, unused])
            sums_scale = np.hstack([scale * gain, sums_scale, unused + 1])
        expected, scale = sums, sums_scale
        y = device.buffer(expected.size * 4)
        shape = dataclasses.replace(
            shape, squares=whole(y), next_weight=next_weight, next_stride=stride
        )
    halves = kernel != "matvec" and weight_kind not in (*FLOAT_TILES, Kind.F16)
    return Prepared(
        [MATMULS[kernel](shape, **more)], y, expected, scale + 1e-30, 5e-4 if halves else 1e-6
    )


FAMILIES: dict[str, Callable[..., Prepared]] = {
    **dict.fromkeys(MATMULS, _matmul), "arrange": _arrange,
}  # fmt: skip
