"""The oracle behind the method that every device has: run(batch) -> logits."""

from typing import Protocol

import numpy as np

from tinyrvllm.model.config import ModelConfig
from tinyrvllm.model.reference import Reference
from tinyrvllm.model.weights import Weights
from tinyrvllm.runner.batch import Batch


class Model(Protocol):
    """What a runner needs of a loaded model."""

    config: ModelConfig
    weights: Weights


class NumpyRunner:
    """Runs batches on the CPU, keeping keys and values in `num_blocks` blocks of `block_size` slots.

    `max_seqs` sequences may hold a convolution state at a time (LFM2). The pools are memory that is
    reserved but not touched before it is used.
    """

    def __init__(
        self,
        model: Model,
        num_blocks: int,
        block_size: int = 16,
        max_seqs: int = 64,
        dtype: type[np.floating] = np.float32,
    ) -> None:
        config = model.config
        self.reference = Reference(config, model.weights, dtype)
        self.block_size = block_size
        kv_shape = (num_blocks, block_size, config.num_kv_heads, config.head_dim)
        state_shape = (max_seqs, config.conv_kernel - 1, config.hidden_size)
        self.keys: dict[int, np.ndarray] = {}  # layer -> [blocks, block_size, kv_heads, head_dim]
        self.values: dict[int, np.ndarray] = {}  # likewise
        self.conv_states: dict[int, np.ndarray] = {}  # layer -> [max_seqs, kernel - 1, hidden]
        for layer, kind in enumerate(config.layer_kinds):
            if kind == "attention":
                self.keys[layer] = np.empty(kv_shape, dtype)
                self.values[layer] = np.empty(kv_shape, dtype)
            else:
                self.conv_states[layer] = np.empty(state_shape, dtype)

    def run(self, batch: Batch) -> np.ndarray:
        """Compute one step: logits of the rows `batch.sample_rows`, float32 [R, vocab]."""
        cache = PagedCache(self, batch)
        hidden = self.reference.forward(batch.token_ids, batch.positions, cache)
        return self.reference.logits(hidden[batch.sample_rows]).astype(np.float32, copy=False)


class PagedCache:
    """The runner's pools as the layers see them during one batch."""

    def __init__(self, runner: NumpyRunner, batch: Batch) -> None:
        self.runner = runner
        self.slots = batch.slot_mapping
        self.sequences = [PagedSequence(runner, batch, index) for index in range(batch.num_seqs)]

    def write(self, layer: int, keys: np.ndarray, values: np.ndarray) -> None:
        for pool, rows in ((self.runner.keys, keys), (self.runner.values, values)):
            pool[layer].reshape(-1, *rows.shape[1:])[self.slots] = rows


class PagedSequence:
    """One sequence of a batch. See `reference.SequenceCache` for what the methods promise."""

    def __init__(self, runner: NumpyRunner, batch: Batch, index: int) -> None:
        first_row, end_row = batch.query_start[index : index + 2].tolist()
        length = int(batch.context_lens[index])
        self.runner = runner
        self.rows = slice(first_row, end_row)
        self.start = length - (end_row - first_row)
        self.state_slot = int(batch.state_slots[index])
        self.blocks = batch.block_tables[index, : -(-length // runner.block_size)]
        # Blocks that lie side by side are read where they are; others are gathered.
        self.contiguous = bool((np.diff(self.blocks) == 1).all())

    def keys_values(self, layer: int, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        size = self.runner.block_size
        skipped = first // size
        blocks = self.blocks[skipped : -(-end // size)]
        index = slice(blocks[0], blocks[-1] + 1) if self.contiguous else blocks
        wanted = slice(first - skipped * size, end - skipped * size)
        keys, values = self.runner.keys[layer][index], self.runner.values[layer][index]
        heads = keys.shape[2:]
        return keys.reshape(-1, *heads)[wanted], values.reshape(-1, *heads)[wanted]

    def conv_history(self, layer: int) -> np.ndarray:
        state = self.runner.conv_states[layer][self.state_slot]
        return state if self.start > 0 else np.zeros_like(state)

    def set_conv_history(self, layer: int, history: np.ndarray) -> None:
        self.runner.conv_states[layer][self.state_slot] = history
