"""The engine: schedule, run, pick tokens; one step at a time, in one thread."""

import time
from collections import deque
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tinyrvllm.engine.request import Delta, Request
from tinyrvllm.engine.sampler import LogitsError, TokenLogprobs, check_logits
from tinyrvllm.engine.scheduler import Scheduler, Work
from tinyrvllm.engine.snapshot import Snapshot
from tinyrvllm.runner import Runner
from tinyrvllm.runner.batch import ALL_MASKED, HAS_NAN, Batch

if TYPE_CHECKING:
    from tinyrvllm.engine.trace import Trace

Pick = tuple[Request, int, TokenLogprobs | None] | tuple[Request, LogitsError, None]
LOGITS_CHUNK = 512  # tokens in one step of `logits`
RECENT_STEPS = 120  # that a snapshot tells of


class Engine:
    """Requests in, Deltas out. Not thread-safe: `worker.py` gives it a thread of its own.

    runner: its KV pool has the scheduler's blocks, and a convolution state for one sequence more
        than may run (LFM2), which `logits` uses.
    """

    def __init__(self, runner: Runner, scheduler: Scheduler) -> None:
        self.runner = runner
        self.scheduler = scheduler
        self.pool = scheduler.pool
        self.trace: Trace | None = None
        self._chain: Generator[tuple[np.ndarray, np.ndarray]] | None = None
        self._chained: list[tuple[Request, int]] = []  # its rows; a preempted one is another
        self._chain_left = 0  # its steps to come
        self._work = Work()  # the last step's
        self._recent: deque[tuple[int, list[tuple[str, int]]]] = deque(maxlen=RECENT_STEPS)
        self._start = time.perf_counter()
        self._step_seconds = 0.0

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def add(self, request: Request) -> None:
        """Takes a request in; it joins at the next step, if there is room."""
        self.scheduler.add(request)

    def abort(self, id: str) -> Delta | None:
        """Ends a request and frees what it holds; None if there is no such request (any more)."""
        scheduler = self.scheduler
        for request in (*scheduler.running, *scheduler.waiting, *scheduler.later):
            if request.id == id:
                scheduler.abort(request)
                return request.cut_off("abort")
        return None

    def step(self) -> list[Delta]:
        """Feeds one batch; a Delta for each request that has a token more, or has failed."""
        start = time.perf_counter()
        self._work = work = self.scheduler.schedule()
        if not work:
            return []
        self.scheduler.totals.steps += 1
        rows_by_id = [(request.id, rows) for request, rows in work]
        self._recent.append((self.scheduler.totals.steps, rows_by_id))
        for request, rows in work:
            if rows > 1:
                self.scheduler.event("prefill", request, f"{rows} tokens")
        picks, limits = self._run(work), self.scheduler.limits
        for request, rows in work:
            at_block_end = (request.computed + rows) % self.pool.block_size == 0
            keep = at_block_end and limits.keeps_state and limits.prefix_cache
            state = self.runner.state(request.state_slot) if keep else None
            self.scheduler.computed(request, rows, state)
        deltas = [self._settle(*pick) for pick in picks]
        self._step_seconds = time.perf_counter() - start
        if self.trace:
            self.trace.step(start, self._step_seconds, work, deltas, self.runner.dispatches())
        return deltas

    def fail(self, error: Exception) -> list[Delta]:
        """After a step that raised: ends all that run, and trusts nothing in the cache."""
        self._end_chain()
        failed = list(self.scheduler.running)
        for request in failed:
            self.scheduler.finish(request)
            self.scheduler.event("finish", request, "error")
        for block in range(self.pool.num_blocks):
            self.pool.forget(block)
        return [request.cut_off("error", str(error)) for request in failed]

    def logits(self, ids: Sequence[int], rows: Sequence[int] | None = None) -> np.ndarray:
        """Logits after the given positions of a sequence of tokens; all of them by default.

        It runs at once, in blocks of its own; for them the youngest requests may be preempted.

        Returns:
            float32 [len(rows) or len(ids), vocab_size].
        """
        self._end_chain()
        needed = self.pool.blocks_for(len(ids))
        while needed > self.pool.num_free:
            self.scheduler.preempt(self.scheduler.running[-1])
        blocks = self.pool.allocate(needed)
        wanted = np.arange(len(ids)) if rows is None else np.asarray(rows)
        slot = self.scheduler.limits.max_running
        pieces = []
        for first in range(0, len(ids), LOGITS_CHUNK):
            chunk = ids[first : first + LOGITS_CHUNK]
            mine = wanted[(wanted >= first) & (wanted < first + len(chunk))] - first
            pieces.append(self.runner.run(self._batch([(chunk, first, blocks, slot)], mine)))
        self.pool.release(blocks)
        return np.concatenate(pieces)

    def record(self, trace: "Trace | None") -> None:
        """Has the steps from now on recorded, or no longer."""
        self._end_chain()
        if trace:
            self.runner.time_dispatches()
        self.trace = trace

    def check(self) -> None:
        """Raises PoolError unless every block and state slot is accounted for."""
        self.scheduler.check()

    def snapshot(self) -> Snapshot:
        """The state after the last step; a copy."""
        now = time.perf_counter() - self._start
        recent = list(self._recent)
        return Snapshot.of(self.scheduler, self._work, recent, now, self._step_seconds)

    # ---- one step

    def _run(self, work: Work) -> list[Pick]:
        """Computes a step; the token of each request that has no pending ones left."""
        picks: list[Pick] = []
        for request, _ in work:
            if request.saved_state is not None:
                self.runner.set_state(request.state_slot, request.saved_state)
                request.saved_state = None
        for part in self._parts(work):
            sampled = [request for request, rows in part if rows == request.pending]
            if all(request.params.is_argmax for request in sampled):
                found = self._greedy(part)
                picks += [_checked(*row) for row in zip(sampled, *found, strict=True)]
            else:
                self._end_chain()
                logits = self.runner.run(self._batch_of(part))
                picks += [_sampled(*row) for row in zip(sampled, logits, strict=True)]
        return picks

    def _parts(self, work: Work) -> list[Work]:
        """What runs together: everything; or, if nothing may depend on the company, each prompt
        alone and the decoding requests together, whose kernels work row by row."""
        if not self.scheduler.limits.batch_invariant:
            return [work]
        parts = [[item] for item in work if item[1] > 1]
        single = [item for item in work if item[1] == 1]
        return [*parts, single] if single else parts

    def _greedy(self, work: Work) -> tuple[list[int], list[int]]:
        """Tokens and flags of the likeliest; the device may be a step ahead, see Runner.greedy."""
        rows = [(request, request.preemptions) for request, _ in work]
        if rows != self._chained or self._chain_left == 0 or len(work) < len(self._work):
            self._end_chain()
            self._chain_left = self._steps_ahead(work)
            self._chain = self.runner.greedy(self._batch_of(work), self._chain_left)
            self._chained = rows
        assert self._chain is not None
        self._chain_left -= 1
        tokens, flags = next(self._chain)
        return tokens.tolist(), flags.tolist()

    def _steps_ahead(self, work: Work) -> int:
        """How many steps like this one will follow if nothing happens."""
        limits, requests = self.scheduler.limits, [request for request, _ in work]
        all_decode = all(request.pending == 1 for request in requests)
        # A state cannot be taken back when a step has been computed in vain.
        if not all_decode or len(work) < len(self._work) or limits.keeps_state:
            return 1
        if self.scheduler.waiting or self.scheduler.later or self.trace:
            return 1  # (a timeline shows a step's dispatches inside the step)
        for request in requests:
            if self.scheduler.room(request) < self.pool.block_size:
                self.scheduler.reserve_ahead(request)
        left = (request.limit - request.num_generated for request in requests)
        return min(*left, *map(self.scheduler.room, requests))

    def _end_chain(self) -> None:
        if self._chain is not None:
            self._chain.close()
            self._chain, self._chained, self._chain_left = None, [], 0

    def _settle(
        self, request: Request, token: int | LogitsError, logprobs: TokenLogprobs | None
    ) -> Delta:
        """Books what was picked; the request leaves if it was the last."""
        if isinstance(token, LogitsError):
            self.scheduler.fail(request)
            delta = request.cut_off("error", str(token))
        else:
            self.scheduler.totals.generation_tokens += 1
            delta = request.append(token, logprobs)
            if delta.finish_reason:
                self.scheduler.finish(request)
        if delta.finish_reason:
            self.scheduler.event("finish", request, delta.finish_reason)
        return delta

    def _batch_of(self, work: Work) -> Batch:
        """The next tokens of each request; logits of the last one where none is left pending."""
        pieces = [
            (request.ids[request.computed : request.computed + rows], request.computed,
             request.blocks, request.state_slot)
            for request, rows in work
        ]  # fmt: skip
        ends = np.cumsum([rows for _, rows in work])
        last = [rows == request.pending for request, rows in work]
        return self._batch(pieces, ends[last] - 1)

    def _batch(
        self, pieces: Sequence[tuple[Sequence[int], int, Sequence[int], int]], rows: np.ndarray
    ) -> Batch:
        """(tokens, position of the first, block table, state slot) of each sequence."""
        size = self.pool.block_size
        counts = [len(ids) for ids, _, _, _ in pieces]
        tables = np.zeros((len(pieces), max(len(table) for _, _, table, _ in pieces)), np.int32)
        for row, (_, _, table, _) in zip(tables, pieces, strict=True):
            row[: len(table)] = table
        first = np.array([first for _, first, _, _ in pieces], np.int32)
        starts = np.cumsum([0, *counts])
        sequence = np.repeat(np.arange(len(pieces)), counts)
        positions = np.arange(starts[-1]) - starts[sequence] + first[sequence]
        slots = tables[sequence, positions // size] * size + positions % size
        return Batch(
            token_ids=np.concatenate([np.asarray(ids, np.int32) for ids, _, _, _ in pieces]),
            positions=positions.astype(np.int32),
            slot_mapping=slots.astype(np.int32),
            block_tables=tables,
            context_lens=first + np.array(counts, np.int32),
            query_start=starts.astype(np.int32),
            sample_rows=rows.astype(np.int32),
            state_slots=np.array([slot for _, _, _, slot in pieces], np.int32),
        )


def _checked(request: Request, token: int, flags: int) -> Pick:
    """A token that the device found."""
    try:
        check_logits(bool(flags & HAS_NAN), bool(flags & ALL_MASKED))
    except LogitsError as error:
        return request, error, None
    return request, token, None


def _sampled(request: Request, logits: np.ndarray) -> Pick:
    """A token drawn from a row of logits [vocab]."""
    try:
        token = request.sampler.sample(logits)
    except LogitsError as error:
        return request, error, None
    wanted = request.params.logprobs is not None
    return request, token, request.sampler.logprobs(logits, token) if wanted else None
