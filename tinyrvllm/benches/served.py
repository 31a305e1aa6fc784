"""The same prompts through the engine, which decides what runs when: one comes, then the others.

So what they have in common with the first is in the cache when they come.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tinyrvllm.engine.block_pool import BlockPool
from tinyrvllm.engine.core import Engine
from tinyrvllm.engine.request import Request
from tinyrvllm.engine.sampler import SamplingParams
from tinyrvllm.engine.scheduler import Limits, Scheduler
from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.model import Model
from tinyrvllm.runner import Runner


@dataclass
class Served:
    """One pass of the engine over some prompts."""

    tokens: list[list[int]]  # [prompts][new tokens]
    seconds: float
    steps: int
    pool_use: float  # the largest share of the blocks that requests held
    prefix_hits: float  # share of the prompts' tokens that were in the cache already

    @property
    def tokens_per_second(self) -> float:
        """Generated ones, over all seconds."""
        return sum(map(len, self.tokens)) / self.seconds


def engine_for(model: Model, runner: Runner, pool: BlockPool, size: int) -> Engine:
    """An engine of up to `size` requests at a time. The runner's cache has the pool's blocks."""
    keeps_state = "conv" in model.config.layer_kinds
    return Engine(runner, Scheduler(pool, Limits(max_running=size, keeps_state=keeps_state)))


def greedy_request(model: Model, number: int, prompt: list[int], new_tokens: int) -> Request:
    """A request that runs to its length."""
    params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
    return Request(str(number), prompt, params, model.tokenizer, model.config.context_length)


def step(engine: Engine) -> None:
    """One step. Raises TinyrvllmError where a request fails: its model or a kernel is broken."""
    for delta in engine.step():
        if delta.error is not None:
            raise TinyrvllmError(delta.error)


def serve(
    model: Model, runner: Runner, pool: BlockPool, prompts: Sequence[list[int]], new_tokens: int
) -> Served:
    """Runs greedy requests to their ends."""
    engine = engine_for(model, runner, pool, len(prompts))
    requests = [greedy_request(model, i, ids, new_tokens) for i, ids in enumerate(prompts)]
    start, held = time.perf_counter(), 0
    for request in requests:
        request.arrival_step = 0 if request is requests[0] else 1
        engine.add(request)
    while engine.has_work:
        step(engine)
        held = max(held, pool.num_blocks - pool.num_free)
    totals = engine.scheduler.totals
    return Served(
        tokens=[request.ids[request.num_prompt :] for request in requests],
        seconds=time.perf_counter() - start,
        steps=totals.steps,
        pool_use=held / pool.num_blocks,
        prefix_hits=totals.prefix_hits / max(1, totals.prefix_queries),
    )
