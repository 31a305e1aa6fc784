"""The arrays of one step: what the engine hands to a runner, whatever the device.

The names are vLLM's. A token's keys and values live in a slot of the paged cache:
slot = block * block_size + offset. A sequence's block table lists its blocks in order, so position
p of sequence s is in block `block_tables[s, p // block_size]` at offset `p % block_size`.
"""

from dataclasses import dataclass

import numpy as np


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

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_seqs(self) -> int:
        return len(self.context_lens)
