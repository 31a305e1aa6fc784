"""A random user of the engine: hypothesis decides what happens next, the books are checked."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tinyrvllm import model as models
from tinyrvllm.engine.block_pool import BlockPool
from tinyrvllm.engine.core import Engine
from tinyrvllm.engine.request import Delta, Request, RequestOutput
from tinyrvllm.engine.sampler import SamplingParams
from tinyrvllm.engine.scheduler import Limits, Scheduler
from tinyrvllm.runner import Runner

BLOCK_SIZE, NUM_BLOCKS, CONTEXT = 4, 14, 48
LIMITS = Limits(max_running=4, token_budget=12, chunk=8)
# Three texts that prompts begin with, so that some share blocks and some part inside one.
BEGINNINGS = [[5, 6, 7, 8] * 8, [5, 6, 7, 8] * 3 + [9] * 20, [10] * 32]
TOLERANCE = 1e-3  # of logits with a standard deviation of about 1, between two ways to add up

OpenRunner = Callable[[models.Model, int, int, int, bool], Runner]  # see `machine_of`

prompts = st.builds(
    lambda beginning, length, end: beginning[:length] + end,
    st.sampled_from(BEGINNINGS), st.integers(0, 30), st.lists(st.integers(3, 40), max_size=6),
).filter(bool)  # fmt: skip
lengths = st.integers(1, 14)
# Half of them are plain, as only those run ahead on the device.
params = st.builds(
    SamplingParams, max_tokens=lengths, temperature=st.just(0), ignore_eos=st.just(True)
) | st.builds(
    SamplingParams,
    max_tokens=lengths,
    temperature=st.sampled_from([0, 0.9]),
    seed=st.integers(0, 3),
    ignore_eos=st.booleans(),
    presence_penalty=st.sampled_from([0, 0, 1.5]),
    logprobs=st.sampled_from([None, 2, 2]),  # with them, every bit of the logits counts
)


def engine_of(model: models.Model, open_runner: OpenRunner, limits: Limits, blocks: int) -> Engine:
    limits = replace(limits, keeps_state="conv" in model.config.layer_kinds)
    seqs = limits.max_running + 1
    runner = open_runner(model, blocks, BLOCK_SIZE, seqs, limits.batch_invariant)
    return Engine(runner, Scheduler(BlockPool(blocks, BLOCK_SIZE), limits))


def machine_of(path: Path, open_runner: OpenRunner, invariant_mode: bool) -> type:
    """A machine over a model file. open_runner: (model, blocks, block size, sequences,
    batch_invariant) -> a runner."""
    model = models.load(path)
    limits = replace(LIMITS, batch_invariant=invariant_mode)
    shared = engine_of(model, open_runner, limits, NUM_BLOCKS).runner
    lonely = engine_of(model, open_runner, replace(limits, prefix_cache=False), 2 * NUM_BLOCKS)

    @cache
    def alone(prompt: tuple[int, ...], sampling: SamplingParams) -> RequestOutput:
        """What comes of a request that has an engine to itself."""
        lonely.add(Request("alone", prompt, sampling, model.tokenizer, CONTEXT))
        output = RequestOutput("", list(prompt))
        while lonely.has_work:
            for delta in lonely.step():
                output.add(delta)
        return output

    class Machine(RuleBasedStateMachine):
        @initialize()
        def start(self) -> None:
            keeps_state = "conv" in model.config.layer_kinds
            scheduler = Scheduler(
                BlockPool(NUM_BLOCKS, BLOCK_SIZE), replace(limits, keeps_state=keeps_state)
            )
            self.engine = Engine(shared, scheduler)  # a used runner: blocks are full of old numbers
            self.requests: dict[str, Request] = {}  # unfinished
            self.outputs: dict[str, RequestOutput] = {}
            self.number = 0
            self.said: list[list[int]] = []  # prompts with their answers

        @precondition(lambda self: self.said)
        @rule(data=st.data(), end=st.lists(st.integers(3, 40), max_size=6), sampling=params)
        def go_on(self, data: st.DataObject, end: list[int], sampling: SamplingParams) -> None:
            """The next turn of a conversation: its prompt begins with what was answered."""
            said = data.draw(st.sampled_from(self.said), "said")
            self.admit((said + end)[: CONTEXT - 8], sampling)

        @rule(prompt=prompts, sampling=params)
        def begin(self, prompt: list[int], sampling: SamplingParams) -> None:
            self.admit(prompt, sampling)

        def admit(self, prompt: list[int], sampling: SamplingParams) -> None:
            request = Request(str(self.number), prompt, sampling, model.tokenizer, CONTEXT)
            self.number += 1
            self.requests[request.id] = request
            self.outputs[request.id] = RequestOutput("", prompt)
            self.engine.add(request)

        @rule(steps=st.integers(1, 6))
        def step(self, steps: int) -> None:
            for _ in range(steps):
                before = [r for r in self.engine.scheduler.running if r.pending == 1]
                deltas = self.engine.step()
                self.engine.check()
                advanced = {delta.request_id for delta in deltas}
                for request in before:  # decoding never waits, unless the pool was full
                    assert request.id in advanced or request.preemptions
                for delta in deltas:
                    self.take(delta)

        @precondition(lambda self: self.requests)
        @rule(data=st.data())
        def abort(self, data: st.DataObject) -> None:
            id = data.draw(st.sampled_from(sorted(self.requests)))
            delta = self.engine.abort(id)
            assert delta is not None
            assert delta.finish_reason == "abort"
            assert self.engine.abort(id) is None
            request = self.requests.pop(id)
            assert request.blocks == []
            if invariant_mode:  # what it had was the beginning of what it would have said
                sampled = self.outputs[id].token_ids
                whole = alone(tuple(request.ids[: request.num_prompt]), request.params)
                assert whole.token_ids[: len(sampled)] == sampled

        @precondition(lambda self: self.engine.scheduler.running)
        @rule(data=st.data())
        def preempt(self, data: st.DataObject) -> None:
            request = data.draw(st.sampled_from(self.engine.scheduler.running), "which")
            self.engine.scheduler.preempt(request)

        @rule(prompt=prompts)
        def logits(self, prompt: list[int]) -> None:
            found = self.engine.logits(prompt, [len(prompt) - 1])
            expected = lonely.logits(prompt, [len(prompt) - 1])
            np.testing.assert_allclose(found, expected, atol=TOLERANCE)

        @rule(block=st.integers(0, NUM_BLOCKS - 1))
        def free(self, block: int) -> None:
            """As if a block that nobody holds had been used for something else meanwhile."""
            if self.engine.pool.refs[block] == 0:
                self.engine.pool.forget(block)

        @invariant()
        def books_are_right(self) -> None:
            if hasattr(self, "engine"):
                self.engine.check()

        def teardown(self) -> None:
            if not hasattr(self, "engine"):
                return
            for _ in range(10_000):
                if not self.engine.has_work:
                    break
                self.step(1)
            assert not self.engine.has_work
            assert self.requests == {}
            assert self.engine.pool.num_free == NUM_BLOCKS

        def take(self, delta: Delta) -> None:
            request, output = self.requests[delta.request_id], self.outputs[delta.request_id]
            output.add(delta)
            if delta.finish_reason is None:
                return
            del self.requests[request.id]
            prompt, sampled = request.ids[: request.num_prompt], request.ids[request.num_prompt :]
            assert output.token_ids == sampled
            self.said.append(request.ids)
            if invariant_mode:
                expected = alone(tuple(prompt), request.params)
                assert what_matters(output) == what_matters(expected)
            elif request.params.temperature == 0 and not request.params.is_penalised:
                rows = range(request.num_prompt - 1, len(request.ids) - 1)
                logits = lonely.logits(request.ids[:-1], rows)
                chosen = logits[np.arange(len(sampled)), sampled]
                assert (chosen >= logits.max(axis=1) - TOLERANCE).all()

    return Machine


def what_matters(output: RequestOutput) -> tuple[object, ...]:
    return output.token_ids, output.text, output.finish_reason, output.logprobs
