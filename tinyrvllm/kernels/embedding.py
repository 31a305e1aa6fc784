"""Rows of a weight matrix as floats: shaders/embedding.metal."""

import struct

from .launch import Cost, KernelError, Launch, Span, ceil_div, reads, unused, writes
from .quant import UNIT, Matrix

THREADS = 64  # of a threadgroup, one unit of 16 weights each


def squares_parts(columns: int) -> int:
    """Partial sums of squares for each row that `launch` leaves in `squares`."""
    return ceil_div(columns, 32 * UNIT)


def launch(
    ids: Span, table: Matrix, y: Span, rows: int, scale: float = 1.0, squares: Span | None = None
) -> Launch:
    """y [rows, inputs] float = scale * table[ids]; an id of -1 gives zeros.

    ids: [rows] int32, each -1 or below table.outputs. squares: [rows, squares_parts] float,
    receives partial sums of squares of y for a fused norm (matmul.FusedNorm).
    """
    columns = table.inputs
    if y.nbytes < rows * columns * 4:
        raise KernelError(f"y: expected {rows * columns * 4} bytes, found {y.nbytes}")
    return Launch(
        shader="embedding",
        kernel="embed",
        constants=(("WEIGHT_TYPE", table.weight_type),),
        groups=(ceil_div(ceil_div(columns, UNIT), THREADS), rows, 1),
        threads=(THREADS, 1, 1),
        arguments=(
            reads(ids),
            reads(table.span),
            writes(y),
            writes(squares) if squares is not None else unused(y),
        ),
        parameters=struct.pack(
            "<3IfI", rows, columns, table.row_bytes, scale, squares is not None
        ),
        cost=Cost(
            bytes_read=rows * (4 + table.row_bytes),
            bytes_written=4 * rows * columns,
            flops=rows * columns,
        ),
        rows=rows,
        shape=f"{table.kind.name} {columns}",
    )
