"""Weights in an order that suits a GPU of many cores: shaders/arrange.metal."""

import struct

from gguf import GGMLQuantizationType

from .launch import Cost, KernelError, Launch, Span, reads, writes
from .quant import can_be_apart, row_bytes

THREADS = 256


def launch(from_: Span, to: Span, kind: GGMLQuantizationType, rows: int, columns: int) -> Launch:
    """Copies a matrix [rows, columns] of that type; one that `can_be_apart` is, afterwards."""
    row = row_bytes(kind, columns)
    for name, span in (("from_", from_), ("to", to)):
        if span.nbytes < rows * row:
            raise KernelError(f"{name}: expected {rows * row} bytes, found {span.nbytes}")
    return Launch(
        shader="arrange",
        kernel="arrange",
        constants=(("APART", can_be_apart(kind, columns)),),
        groups=(rows, 1, 1),
        threads=(THREADS, 1, 1),
        arguments=(reads(from_), writes(to)),
        parameters=struct.pack("<I", row // 2),
        cost=Cost(bytes_read=rows * row, bytes_written=rows * row),
        rows=rows,
        shape=f"{kind.name} {rows} x {columns}",
    )
