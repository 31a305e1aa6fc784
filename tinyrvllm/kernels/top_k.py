"""The k largest of each row, sorted: shaders/top_k.metal."""

import struct

from .launch import Cost, KernelError, Launch, Span, reads, writes

MAX_K = 256


def launch(x: Span, values: Span, indices: Span, rows: int, columns: int, k: int) -> Launch:
    """values, indices [rows, k] (float, int32) of x [rows, columns] float, largest first.

    Ties go to the lowest index; NaN comes last.
    """
    if not 1 <= k <= min(MAX_K, columns):
        raise KernelError(f"top_k: expected k of 1 to {min(MAX_K, columns)}, found {k}")
    return Launch(
        shader="top_k",
        kernel="top_k",
        constants=(),
        groups=(rows, 1, 1),
        threads=(256, 1, 1),
        arguments=(reads(x), writes(values), writes(indices)),
        parameters=struct.pack("<2I", columns, k),
        cost=Cost(
            bytes_read=4 * rows * columns, bytes_written=8 * rows * k, barriers=14,
            threadgroup_bytes=3_144,
        ),
        rows=rows,
        shape=f"{k} of {columns}",
    )  # fmt: skip
