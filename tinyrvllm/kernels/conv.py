"""LFM2's short causal convolution with its state: shaders/conv.metal."""

import struct

from .launch import Cost, KernelError, Launch, Span, ceil_div, reads, updates, writes

THREADS = 64
MAX_TAPS = 4


def state_bytes(slots: int, channels: int, taps: int) -> int:
    """Size of the state of `slots` sequences in one layer."""
    return 4 * slots * (taps - 1) * channels


def launch(
    x: Span, weight: Span, state: Span, y: Span, query_start: Span, positions: Span,
    state_slots: Span, rows: int, sequences: int, channels: int, taps: int,
) -> Launch:  # fmt: skip
    """y = c * conv(b * x) for every sequence of a batch; reads and replaces its state.

    x: [rows, 3 * channels] float, (b, c, x) in each row. weight: [channels, taps] float.
    state: [slots, taps - 1, channels] float. y: [rows, channels] float. query_start:
    [sequences + 1] int32. positions: [rows] int32; a sequence whose first row is at position 0
    starts from zeros. state_slots: [sequences] int32, -1 leaves everything alone.
    """
    if not 2 <= taps <= MAX_TAPS:
        raise KernelError(f"short convolution: expected 2 to {MAX_TAPS} taps, found {taps}")
    state_each = state_bytes(sequences, channels, taps)
    return Launch(
        shader="conv",
        kernel="short_conv",
        constants=(("TAPS", taps),),
        groups=(ceil_div(channels, THREADS), sequences, 1),
        threads=(THREADS, 1, 1),
        arguments=(
            reads(x), reads(weight), updates(state), writes(y),
            reads(query_start), reads(positions), reads(state_slots),
        ),
        parameters=struct.pack("<3I", channels, 3 * channels, channels),
        cost=Cost(
            bytes_read=12 * rows * channels + 4 * channels * taps + state_each,
            bytes_written=4 * rows * channels + state_each,
            flops=2 * rows * channels * (taps + 1),
        ),
        rows=rows,
        shape=f"{channels} x {taps}",
    )  # fmt: skip
