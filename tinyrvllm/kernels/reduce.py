"""RMS norm and softmax over rows: shaders/reduce.metal."""

import struct

from .launch import Cost, Launch, Span, optional, reads, writes

THREADS = 128


def rmsnorm(
    x: Span,
    weight: Span,
    y: Span,
    rows: int,
    columns: int,
    epsilon: float,
    residual: Span | None = None,
) -> Launch:
    """y = x / sqrt(mean(x^2) + epsilon) * weight, plus residual if given; float [rows, columns].

    weight: [columns]. y may be x or the residual.
    """
    nbytes = 4 * rows * columns
    return Launch(
        shader="reduce",
        kernel="rmsnorm",
        constants=(),
        groups=(rows, 1, 1),
        threads=(THREADS, 1, 1),
        arguments=(reads(x), reads(weight), optional(residual, x), writes(y)),
        parameters=struct.pack(
            "<4IfI", columns, columns, columns, columns, epsilon, residual is not None
        ),
        cost=Cost(
            bytes_read=nbytes * (2 if residual else 1) + 4 * columns,
            bytes_written=nbytes,
            flops=(5 if residual else 4) * rows * columns,
            barriers=1,
            threadgroup_bytes=16,
        ),
        rows=rows,
        shape=f"{columns}",
    )


def softmax(x: Span, y: Span, rows: int, columns: int) -> Launch:
    """y = exp(x - max) / sum of each row; float [rows, columns]. -inf gives 0; y may be x."""
    nbytes = 4 * rows * columns
    return Launch(
        shader="reduce",
        kernel="softmax",
        constants=(),
        groups=(rows, 1, 1),
        threads=(THREADS, 1, 1),
        arguments=(reads(x), writes(y)),
        parameters=struct.pack("<I", columns),
        cost=Cost(
            bytes_read=nbytes, bytes_written=nbytes, flops=8 * rows * columns,
            barriers=2, threadgroup_bytes=32,
        ),
        rows=rows,
        shape=f"{columns}",
    )  # fmt: skip
