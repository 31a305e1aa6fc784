"""The index of each row's largest value: shaders/argmax.metal."""

import struct

from .launch import Cost, Launch, Span, ceil_div, reads, writes

CHUNK = 4096  # columns of one threadgroup
HAS_NAN, ALL_MASKED = 1, 2  # flags
WINNER_BYTES = 12  # struct Best


def chunks(columns: int) -> int:
    """Threadgroups for each row; `winners` holds rows * chunks * WINNER_BYTES bytes."""
    return ceil_div(columns, CHUNK)


def launches(
    x: Span, winners: Span, indices: Span, flags: Span, rows: int, columns: int
) -> tuple[Launch, Launch]:
    """Two dependent launches: the best of each chunk, then of each row.

    x: [rows, columns] float. indices: [rows] int32. flags: [rows] uint32, HAS_NAN | ALL_MASKED.
    NaN never wins and the lowest index wins a tie.
    """
    count = chunks(columns)
    winner_bytes = rows * count * WINNER_BYTES
    first = Launch(
        shader="argmax",
        kernel="argmax_chunks",
        constants=(),
        groups=(count, rows, 1),
        threads=(256, 1, 1),
        arguments=(reads(x), writes(winners)),
        parameters=struct.pack("<I", columns),
        cost=Cost(
            bytes_read=4 * rows * columns, bytes_written=winner_bytes, flops=rows * columns,
            barriers=1, threadgroup_bytes=8 * WINNER_BYTES,
        ),
        rows=rows,
        shape=f"{columns}",
    )  # fmt: skip
    second = Launch(
        shader="argmax",
        kernel="argmax_rows",
        constants=(),
        groups=(rows, 1, 1),
        threads=(32, 1, 1),
        arguments=(reads(winners), writes(indices), writes(flags)),
        parameters=struct.pack("<I", count),
        cost=Cost(bytes_read=winner_bytes, bytes_written=8 * rows),
        rows=rows,
        shape=f"{count} chunks",
    )
    return first, second
