"""Greedy decoding that stays on the device: shaders/step.metal."""

import struct

from .argmax import WINNER_BYTES
from .launch import Cost, Launch, Span, reads, updates, writes

RESULT_BYTES = 8  # of a row: index, flags


def advance(
    winners: Span, token_ids: Span, positions: Span, context_lens: Span, slots: Span,
    block_tables: Span, results: Span, rows: int, chunks: int, block_size: int, table_stride: int,
) -> Launch:  # fmt: skip
    """The end of an argmax, and the step after it in place of the one at hand.

    winners: [rows, chunks], of argmax.chunk_winners. Of every row that is not padding (token -1)
    the likeliest token becomes token_ids [rows], at the next position. block_tables:
    [rows, table_stride] int32. results: [rows, 2] int32, index and flags of argmax.launches.
    """
    winner_bytes = rows * chunks * WINNER_BYTES
    return Launch(
        shader="step",
        kernel="advance",
        constants=(),
        groups=(rows, 1, 1),
        threads=(32, 1, 1),
        arguments=(
            reads(winners), updates(token_ids), updates(positions), writes(context_lens),
            writes(slots), reads(block_tables), writes(results),
        ),
        parameters=struct.pack("<3I", chunks, block_size, table_stride),
        cost=Cost(bytes_read=winner_bytes + 12 * rows, bytes_written=24 * rows),
        rows=rows,
        shape=f"{chunks} chunks",
    )  # fmt: skip
