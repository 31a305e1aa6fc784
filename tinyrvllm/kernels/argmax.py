"""The index of each row's largest value: shaders/argmax.metal."""

import struct

from .launch import Cost, Launch, Span, ceil_div, reads, writes

CHUNK = 4096  # columns of one threadgroup
HAS_NAN, ALL_MASKED = 1, 2  # flags
WINNER_BYTES = 12  # struct Best


def chunks(columns: int) -> int:
    """Threadgroups for each row; `winners` holds rows * chunks * WINNER_BYTES bytes."""
    return ceil_div(columns, CHUNK)


def chunk_winners(x: Span, winners: Span, rows: int, columns: int) -> Launch:
    """The best of each chunk of x [rows, columns] float, into winners [rows, chunks]."""
    count = chunks(columns)
    return Launch(
        shader="argmax",
        kernel="argmax_chunks",
        constants=(),
        groups=(count, rows, 1),
        threads=(256, 1, 1),
        arguments=(reads(x), writes(winners)),
        parameters=struct.pack("<I", columns),
        cost=Cost(
            bytes_read=4 * rows * columns, bytes_written=rows * count * WINNER_BYTES,
            flops=rows * columns, barriers=1, threadgroup_bytes=8 * WINNER_BYTES,
        ),
        rows=rows,
        shape=f"{columns}",
    )  # fmt: skip


def launches(
    x: Span, winners: Span, indices: Span, flags: Span, rows: int, columns: int
) -> tuple[Launch, Launch]:
    """Two dependent launches: the best of each chunk, then of each row.

    x: [rows, columns] float. indices: [rows] int32. flags: [rows] uint32, HAS_NAN | ALL_MASKED.
    NaN never wins and the lowest index wins a tie.
    """
    count = chunks(columns)
    second = Launch(
        shader="argmax",
        kernel="argmax_rows",
        constants=(),
        groups=(rows, 1, 1),
        threads=(32, 1, 1),
        arguments=(reads(winners), writes(indices), writes(flags)),
        parameters=struct.pack("<I", count),
        cost=Cost(bytes_read=rows * count * WINNER_BYTES, bytes_written=8 * rows),
        rows=rows,
        shape=f"{count} chunks",
    )
    return chunk_winners(x, winners, rows, columns), second
