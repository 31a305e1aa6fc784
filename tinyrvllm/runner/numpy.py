"""The oracle behind the method that every device has: run(batch) -> logits."""

from collections import defaultdict
from collections.abc import Generator, Iterator
from itertools import pairwise
from threading import Condition
from typing import Final, Protocol

import numpy as np

from tinyrvllm.model import linear
from tinyrvllm.model.config import ModelConfig
from tinyrvllm.model.layers import attention_mask
from tinyrvllm.model.reference import Index, Piece, Reference
from tinyrvllm.model.threads import share
from tinyrvllm.model.weights import Weights
from tinyrvllm.runner.batch import ALL_MASKED, HAS_NAN, Batch, slice_batch

QUERY_TILE: Final = 256  # rows of a prompt at once: their scores are heads * 256 * context floats
PART_ROWS: Final = 32  # twice as many, and each thread has rows of its own; fewer share matrices


class Model(Protocol):
    """What a runner needs of a loaded model."""

    config: ModelConfig
    weights: Weights


class NumpyRunner:
    """Runs batches on the CPU, keeping keys and values in `num_blocks` blocks of `block_size` slots.

    `max_seqs` sequences may hold a convolution state at a time (LFM2). The pools are memory that is
    reserved but not touched before it is used. BLAS adds up in another order for another number of
    rows: with `batch_invariant`, each sequence is computed alone.
    """

    def __init__(
        self,
        model: Model,
        num_blocks: int,
        block_size: int = 16,
        max_seqs: int = 64,
        dtype: type[np.floating] = np.float32,
        batch_invariant: bool = False,
    ) -> None:
        config = model.config
        self.batch_invariant = batch_invariant
        self.reference = Reference(config, model.weights, dtype)
        self.block_size = block_size
        kv_shape = (num_blocks * block_size, 2 * config.num_kv_heads, config.head_dim)
        state_shape = (max_seqs, config.conv_kernel - 1, config.hidden_size)
        self.kv: dict[int, np.ndarray] = {}  # layer -> [slots, keys and values, head_dim]
        self.conv_states: dict[int, np.ndarray] = {}  # layer -> [max_seqs, kernel - 1, hidden]
        for layer, kind in enumerate(config.layer_kinds):
            if kind == "attention":
                self.kv[layer] = np.empty(kv_shape, dtype)
            else:
                self.conv_states[layer] = np.empty(state_shape, dtype)

    def run(self, batch: Batch) -> np.ndarray:
        """Compute one step: logits of the rows `batch.sample_rows`, float32 [R, vocab]."""
        if self.batch_invariant and batch.num_seqs > 1:
            logits = np.empty((len(batch.sample_rows), self.reference.config.vocab_size), np.float32)
            for first, end in pairwise(batch.query_start.tolist()):
                part, wanted = slice_batch(batch, first, end)
                logits[wanted] = self.run(part)
            return logits
        count = max(1, min(linear.threads(), batch.num_tokens // PART_ROWS))
        places = [batch.num_tokens * part // count for part in range(count + 1)]
        parts = [slice_batch(batch, first, end) for first, end in pairwise(places)]
        caches: list[PagedCache] = []
        for part, _ in parts:
            caches.append(PagedCache(self, part, list(caches)))
        if count == 1:
            return self._part(caches[0])
        logits = np.empty((len(batch.sample_rows), self.reference.config.vocab_size), np.float32)

        def run_part(number: int) -> None:
            logits[parts[number][1]] = self._part(caches[number])

        with linear.blas().limit(limits=1):  # its threads and ours would stand in each other's way
            share(run_part, range(count))
        return logits

    def _part(self, cache: "PagedCache") -> np.ndarray:
        """Some rows of a step: logits of the sampled ones."""
        batch = cache.batch
        try:
            hidden = self.reference.forward(batch.token_ids, batch.positions, cache)
            return self.reference.logits(hidden[batch.sample_rows]).astype(np.float32, copy=False)
        finally:
            cache.end()

    def greedy(self, batch: Batch, steps: int) -> Generator[tuple[np.ndarray, np.ndarray]]:
        """The likeliest token of each sampled row, then of each sequence's next steps.

        Yields (token ids, flags), int32 [R] each, as MetalRunner.greedy does: NaN never wins, and
        the lowest index wins a tie.
        """
        for step in range(steps):
            tokens, flags = likeliest(self.run(batch))
            yield tokens, flags
            if step + 1 < steps:
                batch = batch.after(tokens, self.block_size)

    def state(self, slot: int) -> list[np.ndarray]:
        """A copy of a sequence's convolution state."""
        return [states[slot].copy() for states in self.conv_states.values()]

    def set_state(self, slot: int, state: list[np.ndarray]) -> None:
        """Lets a sequence go on from a state that `state` has returned."""
        for states, saved in zip(self.conv_states.values(), state, strict=True):
            states[slot] = saved

    def report(self) -> None:
        """No device, so nothing that a device was asked for."""

    def time_dispatches(self) -> None:
        """There are none."""

    def dispatches(self) -> list[tuple[str, float, float]]:
        return []


def likeliest(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index and flags of each row's largest logit: int32 [R] each. logits: [R, vocab]."""
    rows = np.arange(len(logits))
    tokens = logits.argmax(axis=1)  # of a row with a NaN: where that is
    has_nan = np.isnan(logits[rows, tokens])
    if has_nan.any():
        logits = np.where(np.isnan(logits), -np.inf, logits)
        tokens = logits.argmax(axis=1)
    all_masked = logits[rows, tokens] == -np.inf
    flags = HAS_NAN * has_nan | ALL_MASKED * all_masked
    return tokens.astype(np.int32), flags.astype(np.int32)


class PagedCache:
    """The runner's pools as the layers see them during one batch: a `reference.Cache`.

    before: caches of the rows before these, which threads of their own compute. A sequence may
        begin there, so this one stays behind them: by what a layer writes, not by whole layers.
    """

    def __init__(self, runner: NumpyRunner, batch: Batch, before: "list[PagedCache]") -> None:
        self.runner = runner
        self.batch = batch
        self.before = before
        self._changed = Condition()
        self._written = -1  # the last layer that was
        self._pieces: dict[int | None, list[Piece]] = {}  # by window: layers share them

    def write(self, layer: int, keys_values: np.ndarray) -> None:
        self.runner.kv[layer][self.batch.slot_mapping] = keys_values
        self._tell(layer)

    def end(self) -> None:
        """Nothing more will be written, be it for an error: nobody need wait."""
        self._tell(len(self.runner.reference.layers))

    def _tell(self, layer: int) -> None:
        """Those that wait: what this layer keeps, these rows have left behind."""
        with self._changed:
            self._written = layer
            self._changed.notify_all()

    def _wait(self, layer: int) -> None:
        """Until the rows before these have left behind what this layer keeps."""
        for cache in self.before:
            with cache._changed:
                while cache._written < layer:
                    cache._changed.wait()

    def pieces(self, window: int | None) -> list[Piece]:
        if window not in self._pieces:
            self._pieces[window] = list(self._plan(window))
        return self._pieces[window]

    def read(self, layer: int, piece: Piece) -> tuple[np.ndarray, np.ndarray]:
        self._wait(layer)
        kv = self.runner.kv[layer]
        if isinstance(piece.slots, slice):
            seen = kv[None, piece.slots]
        else:
            seen = kv.take(piece.slots, axis=0)
        heads = kv.shape[1] // 2
        return seen[:, :, :heads], seen[:, :, heads:]

    def conv_histories(self, layer: int) -> Iterator[tuple[slice, np.ndarray]]:
        self._wait(layer)
        batch = self.batch
        for index, slot in enumerate(batch.state_slots):
            rows = slice(batch.query_start[index], batch.query_start[index + 1])
            state = self.runner.conv_states[layer][slot]
            if batch.positions[rows.start] == 0:  # a new sequence, and another one's state
                state.fill(0)
            yield rows, state
        self._tell(layer)

    def _plan(self, window: int | None) -> Iterator[Piece]:
        """Sequences with one row each go together; others one by one, in tiles of their rows."""
        decoding = defaultdict(list)
        starts = self.batch.query_start.tolist()
        for sequence, (first, end) in enumerate(pairwise(starts)):
            if end - first == 1:
                # Only with those of about its length, for the shorter ones are padded.
                length = int(self.batch.context_lens[sequence])
                decoding[length.bit_length()].append(sequence)
                continue
            for row in range(first, end, QUERY_TILE):
                rows = np.s_[None, row : min(row + QUERY_TILE, end)]
                yield self._piece(np.array([sequence]), rows, window)
        for group in decoding.values():
            sequences, first, end = np.array(group), starts[group[0]], starts[group[-1]] + 1
            # A slice, where it serves, makes a view of the queries, not a copy.
            if end - first == len(group):
                yield self._piece(sequences, np.s_[first:end, None], window)
            else:
                yield self._piece(sequences, self.batch.query_start[sequences, None], window)

    def _piece(self, sequences: np.ndarray, rows: Index, window: int | None) -> Piece:
        """sequences [S], rows: see Piece."""
        size = self.runner.block_size
        queries = self.batch.positions[rows]  # [S, n]
        newest = queries[:, -1:]  # [S, 1]
        oldest = np.zeros_like(newest)
        if window is not None:
            oldest = np.maximum(oldest, queries[:, :1] - window + 1)
        keys = oldest + np.arange((newest - oldest).max() + 1)  # [S, c]
        mask = attention_mask(queries, keys, window, self.runner.reference.dtype)
        # Past a sequence's end, where the mask hides all, read what is sure to be a number.
        keys = np.minimum(keys, newest)
        blocks = self.batch.block_tables[sequences[:, None], keys // size]
        slots = blocks * size + keys % size
        if len(slots) == 1 and (slots[0, 1:] == slots[0, :-1] + 1).all():
            return Piece(rows, slice(slots[0, 0], slots[0, -1] + 1), mask)
        return Piece(rows, slots, mask)
