"""Which requests run in the next step, with how many tokens each, and in which blocks.

Every step decodes one token of each request that is past its prompt, and spends what is left of
the token budget on prompts, oldest first: a long prompt takes several steps, and those that decode
never wait for it (chunked prefill; Sarathi-Serve, Agrawal et al. 2024). A waiting request joins as
soon as the pool can hold all its tokens. When a decoding request finds the pool full, the youngest
one gives up its blocks and waits again, at the head of the queue; what it has sampled stays, and
is fed again with its prompt.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from tinyrvllm.engine.block_pool import BlockPool, chain
from tinyrvllm.engine.request import Request

Work = list[tuple[Request, int]]  # requests and how many of their pending tokens to feed


@dataclass
class Totals:
    """Counts since the start; prefix_* in tokens."""

    requests_finished: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    aborted: int = 0
    steps: int = 0
    queue_full: int = 0


@dataclass(frozen=True)
class Limits:
    """What a scheduler keeps to.

    Attributes:
        max_running: requests that run at a time.
        token_budget: tokens fed in one step, prompts and decoding together.
        prefix_cache: whether prompts may share blocks.
        batch_invariant: cut prompts at fixed places and compute a token always in the same way, so
            that a request's numbers are those it has when it runs alone.
        chunk: tokens of a prompt in one step in batch_invariant mode, about; whole blocks.
        keeps_state: a sequence has a state besides its blocks (LFM2), so a shared prefix is of use
            only up to where the state was saved.
    """

    max_running: int = 32
    token_budget: int = 512
    prefix_cache: bool = True
    batch_invariant: bool = False
    chunk: int = 64
    keeps_state: bool = False


@dataclass
class Scheduler:
    """Admits, schedules, preempts. `running` is in the order of admission."""

    pool: BlockPool
    limits: Limits
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    later: list[Request] = field(default_factory=list)  # whose arrival_step is to come
    totals: Totals = field(default_factory=Totals)
    events: deque[tuple[int, str, str, str]] = field(default_factory=lambda: deque(maxlen=1000))

    def __post_init__(self) -> None:
        self._state_slots = list(reversed(range(self.limits.max_running)))
        size = self.pool.block_size
        self.chunk = max(1, self.limits.chunk // size) * size

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting or self.later)

    def add(self, request: Request) -> None:
        if request.arrival_step:
            request.arrival_step += self.totals.steps
            self.later.append(request)
        else:
            self.waiting.append(request)

    def schedule(self) -> Work:
        """The next step's work; blocks for it are held."""
        self._arrive()
        budget, work, preempted = self.limits.token_budget, Work(), self.totals.preemptions
        decoding = [request for request in self.running if request.pending == 1]
        others = [request for request in self.running if request.pending > 1]
        for request in decoding + others:
            rows = self._rows(request, budget, work)
            if rows and request in self.running and self._make_room(request, rows):
                work.append((request, rows))
                budget -= rows
        if self.totals.preemptions > preempted:
            return work  # the pool is full
        while self.waiting and len(self.running) < self.limits.max_running:
            request = self.waiting[0]
            shared = self._shared(request)
            computed = len(shared) * self.pool.block_size
            rows = self._rows(request, budget, work, computed)
            needed = self.pool.blocks_for(len(request.ids)) - len(shared)
            # A block more for each that runs, or the newcomer would soon be preempted.
            if not rows or not self.pool.can_take(shared, needed + len(self.running)):
                break
            self._admit(request, shared, needed)
            work.append((request, rows))
            budget -= rows
        return work

    def finish(self, request: Request) -> None:
        """Takes a running request out; its whole blocks can still be found."""
        self._leave(request)
        self.totals.requests_finished += 1

    def fail(self, request: Request) -> None:
        """Takes a running request out whose numbers are not to be trusted."""
        for block in request.blocks:
            if self.pool.refs[block] == 1:
                self.pool.forget(block)
        self.finish(request)

    def abort(self, request: Request) -> None:
        """Takes a request out, wherever it is."""
        if request in self.running:
            self._leave(request)
        else:
            (self.waiting if request in self.waiting else self.later).remove(request)
        self.totals.aborted += 1
        self.event("abort", request, f"{request.num_generated} tokens")

    def preempt(self, request: Request) -> None:
        """Sends a running request back to the head of the queue."""
        self._leave(request)
        request.preemptions += 1
        self.totals.preemptions += 1
        self.waiting.appendleft(request)
        self.event("preempt", request, f"{len(request.ids)} tokens to feed again")

    def computed(self, request: Request, rows: int, state: list[np.ndarray] | None = None) -> None:
        """Books tokens that a step has fed; blocks that are whole now can be found.

        state: the convolution state after them, if it was saved.
        """
        request.computed += rows
        whole = request.computed
        if self.limits.batch_invariant:  # only what a prompt of this beginning always computes
            whole = min(whole, request.num_prompt) // self.chunk * self.chunk
        whole //= self.pool.block_size
        if self.limits.prefix_cache and whole > request.published:
            chain(request.hashes, request.ids, self.pool.block_size)
            for index in range(request.published, whole):
                at_end = state if (index + 1) * self.pool.block_size == request.computed else None
                self.pool.publish(request.blocks[index], request.hashes[index], at_end)
            request.published = whole

    def room(self, request: Request) -> int:
        """Tokens that fit into a request's blocks besides those computed."""
        return len(request.blocks) * self.pool.block_size - request.computed

    def reserve_ahead(self, request: Request) -> None:
        """Holds one block more for a decoding request, if the pool is not short of them."""
        in_all = request.num_prompt + request.limit - 1  # the last token is not fed
        wanted = len(request.blocks) < self.pool.blocks_for(in_all)
        if wanted and self.pool.num_free > len(self.running):
            request.blocks += self.pool.allocate(1)

    def event(self, kind: str, request: Request, detail: str = "") -> None:
        self.events.append((self.totals.steps, kind, request.id, detail))

    def check(self) -> None:
        """Raises PoolError unless blocks and state slots add up."""
        self.pool.check([request.blocks for request in (*self.running, *self.waiting)])
        slots = [request.state_slot for request in self.running] + self._state_slots
        if sorted(slots) != list(range(self.limits.max_running)):
            raise RuntimeError(f"state slots: {slots}")

    def _arrive(self) -> None:
        """Moves requests whose step has come to the queue; steps without work are left out."""
        if self.later and not (self.running or self.waiting):
            skipped = min(request.arrival_step for request in self.later) - self.totals.steps
            for request in self.later:
                request.arrival_step -= max(0, skipped)
        due = [request for request in self.later if request.arrival_step <= self.totals.steps]
        for request in due:
            self.later.remove(request)
            self.waiting.append(request)

    def _rows(self, request: Request, budget: int, work: Work, computed: int | None = None) -> int:
        """How many of a request's tokens to feed; 0: wait. `computed`: if it were admitted so."""
        computed = request.computed if computed is None else computed
        pending = len(request.ids) - computed
        if not self.limits.batch_invariant or pending == 1:
            rows = min(pending, budget)
            whole = (computed + rows) // self.pool.block_size * self.pool.block_size - computed
            # A state is worth saving where a block ends; what is left of a prompt is one step more.
            return whole if self.limits.keeps_state and whole > 0 else rows
        if computed >= request.num_prompt:
            return min(1, budget)  # preempted: as it was computed before
        end = min((computed // self.chunk + 1) * self.chunk, request.num_prompt)
        rows = end - computed
        # The first of a step may exceed the budget, or it might never run.
        return rows if rows <= budget or all(n == 1 for _, n in work) else 0

    def _make_room(self, request: Request, rows: int) -> bool:
        """Holds blocks for tokens to come; preempts the youngest, which may be the request."""
        needed = self.pool.blocks_for(request.computed + rows) - len(request.blocks)
        while needed > self.pool.num_free:
            self.preempt(self.running[-1])
            if request not in self.running:
                return False
        if needed > 0:
            request.blocks += self.pool.allocate(needed)
        return True

    def _shared(self, request: Request) -> list[int]:
        """Blocks of the request's beginning that are in the cache; never with its last token."""
        if not self.limits.prefix_cache:
            return []
        size = self.pool.block_size
        hashes = chain(request.hashes, request.ids, size)
        found = self.pool.find(hashes[: (len(request.ids) - 1) // size])
        if self.limits.batch_invariant:
            found = found[: len(found) * size // self.chunk * self.chunk // size]
        if self.limits.keeps_state:
            while found and found[-1] not in self.pool.states:
                found.pop()
        return found

    def _admit(self, request: Request, shared: list[int], needed: int) -> None:
        self.waiting.popleft()
        self.pool.share(shared)
        request.blocks = shared + self.pool.allocate(needed)
        request.computed = len(shared) * self.pool.block_size
        request.published = len(shared)
        request.state_slot = self._state_slots.pop()
        request.saved_state = self.pool.states.get(shared[-1]) if shared else None
        self.running.append(request)
        again = request.num_cached is not None
        self.event("admit", request, "again" if again else f"{request.num_prompt} tokens")
        if shared:
            self.event("prefix-hit", request, f"{request.computed} tokens")
        if not again:
            request.num_cached = request.computed
            self.totals.prompt_tokens += request.num_prompt
            self.totals.prefix_queries += request.num_prompt
            self.totals.prefix_hits += request.computed

    def _leave(self, request: Request) -> None:
        self.running.remove(request)
        self.pool.release(request.blocks)
        self._state_slots.append(request.state_slot)
        request.blocks, request.computed, request.published = [], 0, 0
        request.state_slot = -1
