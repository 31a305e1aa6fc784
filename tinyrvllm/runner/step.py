"""The step buffer: all that varies from step to step, in one place, written by the host.

A program is recorded once for a bucket of steps. It finds the tokens, positions and block tables
of the step at hand in this buffer, padded to the bucket's sizes: a padded row has token and slot
-1, a padded sequence a context of 0.
"""

from dataclasses import dataclass

import numpy as np

from tinyrvllm.kernels.launch import Span
from tinyrvllm.mtl import Device
from tinyrvllm.runner.batch import Batch

ROW_BUCKETS = (1, 2, 3, 4, 8, 16, 32, 64, 128)
MAX_ROWS = ROW_BUCKETS[-1]
MIN_CONTEXT = 512  # tokens: the smallest context bucket; the next ones double


@dataclass(frozen=True)
class Bucket:
    """Steps that one program serves: at most this many rows, and tokens of context."""

    rows: int
    context: int

    @classmethod
    def of(cls, rows: int, context: int) -> "Bucket":
        """The smallest bucket for a step."""
        size = MIN_CONTEXT
        while size < context:
            size *= 2
        return cls(bucket_of(rows), size)


def bucket_of(rows: int) -> int:
    """The smallest bucket for up to MAX_ROWS rows."""
    return next(bucket for bucket in ROW_BUCKETS if bucket >= rows)


class StepBuffer:
    """int32 arrays of one step, each at a fixed place of one shared buffer."""

    def __init__(self, device: Device, max_context: int, block_size: int) -> None:
        self.block_size = block_size
        self.max_blocks = -(-max_context // block_size)
        counts = {
            "token_ids": MAX_ROWS,
            "positions": MAX_ROWS,
            "slots": MAX_ROWS,
            "context_lens": MAX_ROWS,
            "query_start": MAX_ROWS + 1,
            "block_tables": MAX_ROWS * self.max_blocks,
            "sample_rows": MAX_ROWS,
        }
        aligned = {name: -(-count // 4) * 16 for name, count in counts.items()}  # bytes
        self.buffer = device.buffer(sum(aligned.values()), "step")
        self.spans: dict[str, Span] = {}
        offset = 0
        for name, nbytes in aligned.items():
            self.spans[name] = Span(self.buffer, offset, nbytes)
            offset += nbytes
        self.arrays: dict[str, np.ndarray] = {
            name: self.buffer.numpy(np.int32, (count,), self.spans[name].offset)
            for name, count in counts.items()
        }
        # Every row attends on its own, as a sequence of one row.
        self.arrays["query_start"][:] = np.arange(MAX_ROWS + 1)
        self.bytes_written = 0  # by the host, in the last step

    def write(self, batch: Batch, bucket: Bucket) -> None:
        """Lays a batch out for the programs of a bucket."""
        rows, padded = batch.num_tokens, bucket.rows
        arrays = self.arrays
        for name, values in (
            ("token_ids", batch.token_ids),
            ("positions", batch.positions),
            ("slots", batch.slot_mapping),
        ):
            arrays[name][:rows] = values
            arrays[name][rows:padded] = -1
        arrays["context_lens"][:rows] = batch.positions + 1
        arrays["context_lens"][rows:padded] = 0
        sequence_of_row = np.repeat(np.arange(batch.num_seqs), np.diff(batch.query_start))
        blocks = min(batch.block_tables.shape[1], self.blocks(bucket))
        tables = arrays["block_tables"][: padded * self.blocks(bucket)]
        tables = tables.reshape(padded, self.blocks(bucket))
        tables[:rows, :blocks] = batch.block_tables[sequence_of_row, :blocks]
        self.bytes_written = 4 * (4 * padded + rows * blocks)

    def blocks(self, bucket: Bucket) -> int:
        """Blocks in a row of the bucket's block tables."""
        return min(self.max_blocks, -(-bucket.context // self.block_size))
