"""One thread an element: shaders/elementwise.metal. All arrays are float unless said otherwise."""

import struct

from .launch import Argument, Cost, Launch, Span, ceil_div, reads, writes
from .matmul import ACTIVATIONS

THREADS = 256


def _launch(
    kernel: str,
    arguments: tuple[Argument, ...],
    parameters: bytes,
    count: int,
    bytes_each: tuple[int, int],
    flops: int,
) -> Launch:
    return Launch(
        shader="elementwise",
        kernel=kernel,
        constants=(),
        groups=(ceil_div(count, THREADS), 1, 1),
        threads=(THREADS, 1, 1),
        arguments=arguments,
        parameters=parameters,
        cost=Cost(count * bytes_each[0], count * bytes_each[1], count * flops),
        shape=f"{count}",
    )


def add(a: Span, b: Span, y: Span, count: int) -> Launch:
    """y = a + b"""
    arguments = (reads(a), reads(b), writes(y))
    return _launch("add", arguments, struct.pack("<I", count), count, (8, 4), 1)


def gate(gate_in: Span, up: Span, y: Span, count: int, activation: str) -> Launch:
    """y = activation(gate) * up; activation is a key of matmul.ACTIVATIONS."""
    arguments = (reads(gate_in), reads(up), writes(y))
    parameters = struct.pack("<2I", count, ACTIVATIONS[activation])
    return _launch("gate", arguments, parameters, count, (8, 4), 8)


def softcap(x: Span, y: Span, count: int, cap: float) -> Launch:
    """y = cap * tanh(x / cap)"""
    parameters = struct.pack("<If", count, cap)
    return _launch("softcap", (reads(x), writes(y)), parameters, count, (4, 4), 8)


def copy(x: Span, y: Span, count: int) -> Launch:
    """y = x"""
    return _launch("copy", (reads(x), writes(y)), struct.pack("<I", count), count, (4, 4), 0)


def to_half(x: Span, y: Span, count: int) -> Launch:
    """y = x rounded to half, to nearest even; above 65,504 it is infinite."""
    return _launch("to_half", (reads(x), writes(y)), struct.pack("<I", count), count, (4, 2), 0)


def to_float(x: Span, y: Span, count: int) -> Launch:
    """y = x, from half"""
    return _launch("to_float", (reads(x), writes(y)), struct.pack("<I", count), count, (2, 4), 0)


def multiply_adds(y: Span, count: int, rounds: int) -> Launch:
    """Arithmetic and nothing else, 32 * rounds multiply-adds an element: see the shader."""
    parameters = struct.pack("<2I", count, rounds)
    return _launch("multiply_adds", (writes(y),), parameters, count, (0, 4), 64 * rounds)
