"""Sequences with blocks of their own, and batches made of them: an engine in forty lines."""

from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tinyrvllm.model.config import ModelConfig
from tinyrvllm.model.gguf_file import GGUFFile
from tinyrvllm.model.weights import Weights
from tinyrvllm.runner.batch import Batch


class Model:
    """What a runner needs of a model; a tokenizer is not."""

    def __init__(self, path: Path) -> None:
        self.file = GGUFFile(path)
        self.config = ModelConfig.from_gguf(self.file)
        self.weights = Weights(self.file, self.config)


@dataclass
class Sequence:
    ids: list[int]
    blocks: list[int]
    state_slot: int = 0
    done: int = field(default=0)  # tokens in the cache


def batch_of(work: Many[tuple[Sequence, int]], block_size: int) -> Batch:
    """The next n tokens of each sequence, for each (sequence, n); logits of every row."""
    ids, positions, slots = [], [], []
    for sequence, n in work:
        for position in range(sequence.done, sequence.done + n):
            ids.append(sequence.ids[position])
            positions.append(position)
            block = sequence.blocks[position // block_size]
            slots.append(block * block_size + position % block_size)
        sequence.done += n
    widest = max(len(sequence.blocks) for sequence, _ in work)
    tables = np.full((len(work), widest), -1)
    for row, (sequence, _) in zip(tables, work, strict=True):
        row[: len(sequence.blocks)] = sequence.blocks
    return Batch(
        token_ids=np.array(ids, np.int32),
        positions=np.array(positions, np.int32),
        slot_mapping=np.array(slots, np.int32),
        block_tables=tables.astype(np.int32),
        context_lens=np.array([sequence.done for sequence, _ in work], np.int32),
        query_start=np.cumsum([0, *(n for _, n in work)]).astype(np.int32),
        sample_rows=np.arange(len(ids), dtype=np.int32),
        state_slots=np.array([sequence.state_slot for sequence, _ in work], np.int32),
    )
