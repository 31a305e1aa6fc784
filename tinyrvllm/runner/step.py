"""The step buffer: all that varies from step to step, in one place, written by the host.

A program is recorded once for a bucket of steps. It finds the tokens, positions and block tables
of the step at hand in this buffer, padded to the bucket's sizes: a padded row has token and slot
-1, a padded sequence a context of 0 and no rows.
"""

from dataclasses import dataclass

import numpy as np

from tinyrvllm.kernels.launch import Span
from tinyrvllm.mtl import Device
from tinyrvllm.runner.batch import Batch

SIZES = (1, 2, 3, 4, 8, 16, 32, 64, 128)  # of rows or sequences
MAX_ROWS = SIZES[-1]
MIN_CONTEXT = 512  # tokens: the smallest context bucket; the next ones double


def padded_size(count: int) -> int:
    """The smallest of SIZES that holds `count` rows or sequences."""
    return next(size for size in SIZES if size >= count)


def context_bucket(batch: Batch, max_context: int) -> int:
    """The smallest power of two, from MIN_CONTEXT to max_context, that holds the contexts."""
    context, longest = MIN_CONTEXT, int(batch.context_lens.max())
    while context < longest:
        context *= 2
    return min(context, max_context)


@dataclass(frozen=True)
class Bucket:
    """Steps that one program serves: at most these sizes, and only these kinds of sequences."""

    rows: int
    sequences: int
    context: int  # tokens
    decodes: bool  # some sequence has one row
    prefills: bool  # some sequence has more

    @classmethod
    def of(cls, batch: Batch, max_context: int) -> "Bucket":
        """The smallest bucket for a batch."""
        counts = np.diff(batch.query_start)
        return cls(
            rows=padded_size(batch.num_tokens),
            sequences=padded_size(batch.num_seqs),
            context=context_bucket(batch, max_context),
            decodes=bool((counts == 1).any()),
            prefills=bool((counts > 1).any()),
        )


def step_counts(rows: int, max_context: int, block_size: int) -> dict[str, int]:
    """int32 numbers in each array of a step buffer."""
    return {
        "token_ids": rows,
        "positions": rows,
        "slots": rows,
        "context_lens": rows,
        "state_slots": rows,
        "query_start": rows + 1,
        "sample_rows": rows,
        "block_tables": rows * -(-max_context // block_size),
    }


def step_bytes(rows: int, max_context: int, block_size: int) -> int:
    """Size of a step buffer for steps of up to `rows` rows; each array starts at 16 bytes."""
    return sum(-(-n // 4) * 16 for n in step_counts(rows, max_context, block_size).values())


class StepBuffer:
    """int32 arrays of one step, each at a fixed place of one shared buffer."""

    def __init__(self, device: Device, max_rows: int, max_context: int, block_size: int) -> None:
        self.block_size = block_size
        counts = step_counts(max_rows, max_context, block_size)
        aligned = {name: -(-count // 4) * 16 for name, count in counts.items()}  # bytes
        self.buffer = device.buffer(sum(aligned.values()), "step")
        self.spans: dict[str, Span] = {}
        self.arrays: dict[str, np.ndarray] = {}
        self.bytes_written = 0  # by the host, in the last step
        offset = 0
        for name, nbytes in aligned.items():
            self.spans[name] = Span(self.buffer, offset, nbytes)
            self.arrays[name] = self.buffer.numpy(np.int32, (counts[name],), offset)
            offset += nbytes

    def write(self, batch: Batch, bucket: Bucket) -> None:
        """Lays a batch out for the programs of a bucket.

        Raises MetalError while a committed command buffer may read the step before.
        """
        self.buffer.numpy()  # which is what raises
        self.bytes_written = 0
        self._put("token_ids", batch.token_ids, bucket.rows, -1)
        self._put("positions", batch.positions, bucket.rows, 0)
        self._put("slots", batch.slot_mapping, bucket.rows, -1)
        self._put("context_lens", batch.context_lens, bucket.sequences, 0)
        self._put("state_slots", batch.state_slots, bucket.sequences, -1)
        self._put("query_start", batch.query_start, bucket.sequences + 1, batch.num_tokens)
        width = self.blocks(bucket)
        used = min(batch.block_tables.shape[1], width)
        tables = self.arrays["block_tables"][: batch.num_seqs * width]
        tables.reshape(-1, width)[:, :used] = batch.block_tables[:, :used]
        self.bytes_written += 4 * batch.num_seqs * used

    def put_samples(self, rows: np.ndarray, size: int) -> None:
        """The rows whose logits are wanted, padded to `size`."""
        self._put("sample_rows", rows, size, -1)

    def blocks(self, bucket: Bucket) -> int:
        """Blocks in a row of the bucket's block tables."""
        return -(-bucket.context // self.block_size)

    def _put(self, name: str, values: np.ndarray, size: int, padding: int) -> None:
        array = self.arrays[name]
        array[: len(values)] = values
        array[len(values) : size] = padding
        self.bytes_written += 4 * size
