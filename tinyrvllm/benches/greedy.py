"""Greedy sequences on a runner, and what they cost: what sweep, compare and trace measure."""

import statistics
import time
from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np

from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.model import Model
from tinyrvllm.runner import open_runner
from tinyrvllm.runner.batch import HAS_NAN, Batch

BLOCK_SIZE = 16
PREFILL_CHUNK = 512  # rows of a prompt in one step
SHARED = 1 << 31  # the number of a prompt that is nobody's own


def prompt(seed: int, number: int, length: int, vocab_size: int) -> list[int]:
    """Random tokens that depend on nothing but these arguments: batch 32 alone reproduces."""
    rng = np.random.default_rng([seed, number])
    return [int(token) for token in rng.integers(0, vocab_size, length)]


def prompts(seed: int, count: int, length: int, vocab_size: int, shared: int = 0) -> list[list[int]]:
    """The first `count` prompts; their first `shared` tokens are the same ones in all."""
    beginning = prompt(seed, SHARED, shared, vocab_size)
    return [beginning + prompt(seed, i, length, vocab_size)[shared:] for i in range(count)]


def fnv1a(tokens: Many[Many[int]]) -> str:
    """64-bit FNV-1a of all tokens, each as 4 bytes, little-endian, sequence after sequence."""
    checksum = 0xCBF29CE484222325
    for byte in b"".join(token.to_bytes(4, "little") for line in tokens for token in line):
        checksum = (checksum ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{checksum:016x}"


@dataclass
class Sequence:
    """Tokens so far, of which `cached` are in the pool, in place `slot` of it."""

    ids: list[int]
    slot: int
    cached: int = 0


@dataclass
class Generation:
    """One run: what was generated, and the seconds of each prompt and of each decode step."""

    tokens: list[list[int]]  # [sequences][new tokens]
    prompt_tokens: int  # of each sequence
    prefill_seconds: list[float]
    step_seconds: list[float]

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens over all seconds, those of the prompts included."""
        seconds = sum(self.prefill_seconds) + sum(self.step_seconds)
        return sum(map(len, self.tokens)) / seconds

    @property
    def ms_per_step(self) -> float:
        return 1e3 * statistics.fmean(self.step_seconds) if self.step_seconds else 0.0

    @property
    def first_token_ms(self) -> float:
        """Of one prompt, alone: the median."""
        return 1e3 * statistics.median(self.prefill_seconds)

    @property
    def prefill_tokens_per_second(self) -> float:
        return len(self.tokens) * self.prompt_tokens / sum(self.prefill_seconds)


class Greedy:
    """A model on a device, with room for `size` sequences of at most `length` tokens."""

    def __init__(self, model: Model, device: str, size: int, length: int) -> None:
        self.blocks = -(-length // BLOCK_SIZE)  # of each sequence, side by side in the pool
        self.vocab_size = model.config.vocab_size
        # A block more for each: so much does the engine, which sweep runs too, keep in reserve.
        self.num_blocks = size * (self.blocks + 1)
        self.runner = open_runner(
            model, device, self.num_blocks, BLOCK_SIZE, max_context=self.blocks * BLOCK_SIZE
        )

    def step(self, work: Many[tuple[Sequence, int]]) -> None:
        """Feeds the next n tokens of each (sequence, n), and appends the likeliest next one to
        those that are then complete."""
        complete = np.array([s.cached + n == len(s.ids) for s, n in work])
        ends = np.cumsum([n for _, n in work])
        for tokens in self._tokens(self._batch(work, ends[complete] - 1), 1):
            finished = [s for (s, _), done in zip(work, complete, strict=True) if done]
            for sequence, token in zip(finished, tokens, strict=True):
                sequence.ids.append(token)

    def generate(self, prompts: Many[list[int]], new_tokens: int) -> Generation:
        """Each prompt alone, as it would arrive; then all sequences together, step by step."""
        sequences = [Sequence(list(ids), slot) for slot, ids in enumerate(prompts)]
        prefills, steps = [], []
        for sequence in sequences:
            start = time.perf_counter()
            for left in range(len(sequence.ids), 0, -PREFILL_CHUNK):
                self.step([(sequence, min(left, PREFILL_CHUNK))])
            prefills.append(time.perf_counter() - start)
        lines = [[sequence.ids[-1]] for sequence in sequences]
        start = time.perf_counter()
        if new_tokens > 1:
            batch = self._batch([(s, 1) for s in sequences], np.arange(len(sequences)))
            for tokens in self._tokens(batch, new_tokens - 1):
                steps.append(time.perf_counter() - start)
                start = time.perf_counter()
                for line, token in zip(lines, tokens, strict=True):
                    line.append(token)
        return Generation(lines, len(prompts[0]), prefills, steps)

    def logits(self, ids: list[int], first: int) -> np.ndarray:
        """Logits after positions first, first + 1, ... of one sequence: [len(ids) - first, V]."""
        sequence, pieces = Sequence(ids, slot=0), []
        for left in range(len(ids), 0, -PREFILL_CHUNK):
            n = min(left, PREFILL_CHUNK)
            rows = np.arange(max(0, first - sequence.cached), n)
            pieces.append(self.runner.run(self._batch([(sequence, n)], rows)))
        return np.concatenate(pieces)

    def _tokens(self, batch: Batch, steps: int) -> Iterator[list[int]]:
        """The runner's greedy tokens of each step. Raises TinyrvllmError for a NaN."""
        for tokens, flags in self.runner.greedy(batch, steps):
            if (flags & HAS_NAN).any():
                raise TinyrvllmError("a NaN is among the logits: this model or kernel is broken")
            yield tokens.tolist()

    def _batch(self, work: Many[tuple[Sequence, int]], rows: np.ndarray) -> Batch:
        """The next n tokens of each (sequence, n), which count as cached from now on."""
        ids, positions, slots = [], [], []
        for sequence, n in work:
            end = sequence.cached + n
            ids += sequence.ids[sequence.cached : end]
            places = np.arange(sequence.cached, end)
            positions.append(places)
            slots.append(sequence.slot * self.blocks * BLOCK_SIZE + places)
            sequence.cached = end
        table = np.arange(self.blocks)  # of slot 0
        return Batch(
            token_ids=np.array(ids, np.int32),
            positions=np.concatenate(positions).astype(np.int32),
            slot_mapping=np.concatenate(slots).astype(np.int32),
            block_tables=np.array([s.slot * self.blocks + table for s, _ in work], np.int32),
            context_lens=np.array([s.cached for s, _ in work], np.int32),
            query_start=np.cumsum([0, *(n for _, n in work)]).astype(np.int32),
            sample_rows=rows.astype(np.int32),
            state_slots=np.array([s.slot for s, _ in work], np.int32),
        )
