"""The arrays of one step: what the engine hands to a runner, whatever the device.

The names are vLLM's. A token's keys and values live in a slot of the paged cache:
slot = block * block_size + offset. A sequence's block table lists its blocks in order, so position
p of sequence s is in block `block_tables[s, p // block_size]` at offset `p % block_size`.
"""

from dataclasses import dataclass

import numpy as np

# Flags of a row of logits, beside the index of its largest (shaders/argmax.h sets them too).
HAS_NAN, ALL_MASKED = 1, 2


@dataclass(frozen=True)
class Batch:
    """T tokens of S sequences, the rows of a sequence side by side; logits are wanted for R rows.

    Every array is int32. A sequence may bring one token (decode), its whole prompt (prefill) or a
    part of it (chunked prefill); what came before must have been run already.
    """

    token_ids: np.ndarray  # [T]
    positions: np.ndarray  # [T]
    slot_mapping: np.ndarray  # [T] where each token's keys and values are written
    block_tables: np.ndarray  # [S, max_blocks] entries past a sequence's length are never read
    context_lens: np.ndarray  # [S] tokens of the sequence in the cache once this step is done
    query_start: np.ndarray  # [S + 1] rows query_start[s]:query_start[s + 1] are sequence s's
    sample_rows: np.ndarray  # [R]
    state_slots: np.ndarray  # [S] where a sequence's convolution state is kept (LFM2)

    def after(self, tokens: np.ndarray, block_size: int, steps: int = 1) -> "Batch":
        """The decode step that feeds the sequences their next tokens, [S], `steps` steps later."""
        sequences = np.arange(self.num_seqs, dtype=np.int32)
        positions = self.context_lens + np.int32(steps - 1)
        blocks = self.block_tables[sequences, positions // block_size]
        return Batch(
            token_ids=tokens,
            positions=positions,
            slot_mapping=blocks * block_size + positions % block_size,
            block_tables=self.block_tables,
            context_lens=positions + 1,
            query_start=np.arange(self.num_seqs + 1, dtype=np.int32),
            sample_rows=sequences,
            state_slots=self.state_slots,
        )

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_seqs(self) -> int:
        return len(self.context_lens)


def slice_batch(batch: Batch, first: int, end: int) -> tuple[Batch, np.ndarray]:
    """Rows first:end of a batch as a batch, and which of `batch.sample_rows` they hold."""
    if (first, end) == (0, batch.num_tokens):
        return batch, np.arange(len(batch.sample_rows))
    starts = np.clip(batch.query_start, first, end)
    kept = np.flatnonzero(np.diff(starts) > 0)
    ends = np.append(starts[kept], end)
    wanted = np.flatnonzero((batch.sample_rows >= first) & (batch.sample_rows < end))
    rows = slice(first, end)
    part = Batch(
        token_ids=batch.token_ids[rows],
        positions=batch.positions[rows],
        slot_mapping=batch.slot_mapping[rows],
        block_tables=batch.block_tables[kept],
        context_lens=batch.positions[ends[1:] - 1] + 1,
        query_start=ends - first,
        sample_rows=batch.sample_rows[wanted] - first,
        state_slots=batch.state_slots[kept],
    )
    return part, wanted
