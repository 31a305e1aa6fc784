"""The public API: a model, and text from it. Names are vLLM's."""

import itertools
import weakref
from collections.abc import Callable, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from tinyrvllm import hub
from tinyrvllm import model as models
from tinyrvllm.engine.block_pool import BlockPool
from tinyrvllm.engine.core import Engine
from tinyrvllm.engine.request import (
    Delta,
    Prompt,
    QueueFull,
    Request,
    RequestOutput,
    RequestsFailed,
)
from tinyrvllm.engine.sampler import SamplingParams
from tinyrvllm.engine.scheduler import Limits, Scheduler
from tinyrvllm.engine.sizes import Sizes
from tinyrvllm.engine.stream import Stream
from tinyrvllm.engine.trace import Trace
from tinyrvllm.engine.worker import Worker
from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.runner import open_runner
from tinyrvllm.runner.options import Options

if TYPE_CHECKING:
    from tinyrvllm.runner.report import Report

__all__ = ["LLM", "Delta", "QueueFull", "RequestOutput", "RequestsFailed", "Stream"]

class LLM:
    """A model on a device, and the engine that runs requests on it, many at a time.

    A thread of its own owns the model; methods may be called from any thread. It ends with
    `close()`, at the end of a `with` block, or when the LLM is no longer referred to.

    Args:
        model: a path, a built-in name, or a loaded `tinyrvllm.model.Model`.
        device: "auto", "cpu", ... (see `tinyrvllm.runner`).
        context_length: the most tokens of prompt and answer together; default: the model's own,
            or what `num_blocks` holds.
        options: how a device computes; "cpu" knows only `batch_invariant`.
        block_size: tokens in a block of the KV cache.
        num_blocks: blocks of the cache; default: a whole context, and 4,096 tokens at least.
        max_running: requests that run at a time (vLLM's max_num_seqs).
        max_queue: requests that may wait besides; None: any number.
        token_budget: tokens fed in one step (vLLM's max_num_batched_tokens).
        prefix_cache: whether requests share the blocks of equal beginnings.

    Raises:
        TinyrvllmError: the model or the device cannot be had, or a number is out of range.
    """

    def __init__(
        self,
        model: str | PathLike[str] | models.Model = hub.DEFAULT_MODEL,
        device: str = "auto",
        context_length: int | None = None,
        options: Options | None = None,
        *,
        block_size: int = 16,
        num_blocks: int | None = None,
        max_running: int = 32,
        max_queue: int | None = None,
        token_budget: int = 512,
        prefix_cache: bool = True,
    ) -> None:
        self.model = model if isinstance(model, models.Model) else models.load(hub.resolve(model))
        sizes = Sizes.of(
            self.model.config.context_length, context_length, block_size, num_blocks, max_running,
            max_queue, token_budget,
        )  # fmt: skip
        self.context_length, self.max_running = sizes.context_length, max_running
        self.max_queue, self.block_size, self.num_blocks = max_queue, block_size, sizes.num_blocks
        limits = Limits(
            max_running, token_budget, prefix_cache,
            batch_invariant=options is not None and options.batch_invariant,
            keeps_state="conv" in self.model.config.layer_kinds,
        )  # fmt: skip
        self._runner = open_runner(
            self.model, device, sizes.num_blocks, block_size, options,
            max_seqs=max_running + 1, max_context=sizes.longest,
        )  # fmt: skip
        pool = BlockPool(sizes.num_blocks, block_size)
        self._engine = Engine(self._runner, Scheduler(pool, limits))
        self._worker = Worker(self._engine, None if max_queue is None else max_running + max_queue)
        self._numbers = itertools.count()
        self._close = weakref.finalize(self, self._worker.close)  # at exit, too

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Continues prompts (texts, or token ids) together; the outputs are in their order.

        params: for all prompts, or a list with one for each.

        Raises:
            RequestsFailed: some failed; the others ran to their ends.
        """
        pairs = self._prepare_all(_several(prompts), params, ())
        try:
            self._queue(pairs)
            for _, stream in pairs:
                for _ in stream.deltas():
                    pass
        except BaseException:  # Ctrl-C in a notebook, too: nothing runs on unseen
            for _, stream in pairs:
                stream.abort()
            raise
        outputs = [stream.output for _, stream in pairs]
        if any(output.error is not None for output in outputs):
            raise RequestsFailed(outputs)
        return outputs

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Stream:
        """Continues one prompt; iterating over the result yields text as it is generated."""
        return self.submit(prompt, params)

    def chat(
        self, messages: Sequence[dict[str, str]], params: SamplingParams | None = None
    ) -> Stream:
        """Answers a conversation, [{"role": "user", "content": "..."}, ...], as `stream` does.

        Raises:
            TemplateError: the model has no chat template, or it refuses these messages.
        """
        ids = self.model.encode_chat(list(messages))
        stream = self.submit(ids, params)
        stream.output.prompt = messages[-1]["content"]
        return stream

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        callback: Callable[[Delta], object] | None = None,
    ) -> Stream:
        """Queues a request and returns at once.

        callback: gets each Delta in the worker's thread, so it must be quick, and must not wait
            for the engine; the Stream is then for its `output` and `abort`.

        Raises:
            QueueFull: as many requests as may be run and wait already.
            TinyrvllmError: this cannot be a prompt of this model, or the LLM is closed.
        """
        request, stream = self._prepare(prompt, params, 0, request_id, callback)
        self._worker.submit([(request, stream.sink)])
        return stream

    def submit_all(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        arrival_steps: Sequence[int] = (),
    ) -> list[Stream]:
        """Queues several requests at once, so that it is not chance which of them join together.

        With a `max_queue` they are queued one by one, as there is room.

        params: for all prompts, or a list with one for each.
        arrival_steps: for the first prompts, how many steps of the engine later each arrives.

        Raises:
            TinyrvllmError: one of them cannot be a prompt of this model; none is queued.
        """
        pairs = self._prepare_all(prompts, params, arrival_steps)
        self._queue(pairs)
        return [stream for _, stream in pairs]

    def logits(self, ids: Sequence[int], rows: Sequence[int] | None = None) -> np.ndarray:
        """Logits after the given positions of a sequence of tokens; all of them by default.

        Returns:
            float32 [len(rows) or len(ids), vocab_size].
        """
        self.check_prompt(ids)
        return self._worker.call(lambda engine: engine.logits(ids, rows))

    def check_prompt(self, ids: Sequence[int]) -> None:
        """Raises a TinyrvllmError unless these tokens can be a prompt of this model."""
        if not ids:
            raise TinyrvllmError("the prompt is empty: there is nothing to continue")
        if len(ids) > self.context_length:
            model = self.model.config.context_length
            more = " or raise the context (--ctx)" if self.context_length < model else ""
            raise TinyrvllmError(
                f"the prompt has {len(ids):,} tokens, the context {self.context_length:,}: "
                f"shorten the prompt{more}"
            )
        self._check_ids(ids)

    def snapshot(self) -> dict[str, Any]:
        """The engine after its last step, JSON-ready.

        step, time (seconds since the start), step_seconds, rows (tokens in the step), block_size,
        num_blocks, running, waiting, blocks (references and whether cached, by block), totals,
        recent_steps ((step, [(request, tokens fed)]) of the last ones).
        """
        return self._worker.snapshot.as_json()

    def events(self) -> list[tuple[int, str, str, str]]:
        """The latest (step, event, request, detail), oldest first: admit, prefill, prefix-hit,
        preempt, abort, finish."""
        return list(self._engine.scheduler.events)

    @property
    def is_usable(self) -> bool:
        """Whether requests are still run: it is not closed, and its thread has not died."""
        return self._worker.is_usable

    def check(self) -> None:
        """Raises PoolError unless every block of the cache is accounted for."""
        self._worker.call(lambda engine: engine.check())

    @property
    def trace(self) -> Trace | None:
        """Set it to a Trace to have steps, and a device's dispatches one by one, recorded."""
        return self._engine.trace

    @trace.setter
    def trace(self, trace: Trace | None) -> None:
        self._worker.call(lambda engine: engine.record(trace))

    def report(self) -> "Report | None":
        """What the last step cost; None where there is no device."""
        return self._runner.report()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Aborts what runs and ends the engine's thread. May be called again."""
        self._close()

    def _prepare(
        self, prompt: Prompt, params: SamplingParams | None, arrival_step: int = 0,
        request_id: str | None = None, callback: Callable[[Delta], object] | None = None,
    ) -> tuple[Request, Stream]:  # fmt: skip
        """A request for the engine, and the handle of its owner."""
        params, tokenizer = params or SamplingParams(), self.model.tokenizer
        ids = (
            tokenizer.encode(prompt) if isinstance(prompt, str | bytes) else list(map(int, prompt))
        )
        self.check_prompt(ids)
        self._check_ids(list(params.logit_bias or {}), "logit_bias: ")
        id = request_id or f"request-{next(self._numbers)}"
        request = Request(id, ids, params, tokenizer, self.context_length, arrival_step)
        return request, Stream(self._worker, self, id, prompt, ids, callback)

    def _prepare_all(
        self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None,
        arrival_steps: Sequence[int],
    ) -> list[tuple[Request, Stream]]:  # fmt: skip
        each = list(params) if isinstance(params, Sequence) else [params] * len(prompts)
        steps = [*arrival_steps, *[0] * (len(prompts) - len(arrival_steps))]
        if not len(prompts) == len(each) == len(steps):
            counts = f"{len(each)} sampling params and {len(steps)} arrival steps"
            raise TinyrvllmError(f"{len(prompts)} prompts, but {counts}")
        return [self._prepare(*three) for three in zip(prompts, each, steps, strict=True)]

    def _queue(self, pairs: Sequence[tuple[Request, Stream]]) -> None:
        """All at once; where the queue has an end, one by one as there is room."""
        if self.max_queue is None:
            return self._worker.submit([(request, stream.sink) for request, stream in pairs])
        for number, (request, stream) in enumerate(pairs):
            while True:
                running = [before for _, before in pairs[:number] if before.is_running]
                try:
                    self._worker.submit([(request, stream.sink)])
                    break
                except QueueFull:
                    if not running:
                        raise  # the queue is full of others' requests
                    running[0].wait()

    def _check_ids(self, ids: Sequence[int], what: str = "") -> None:
        vocab_size = self.model.config.vocab_size
        if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
            raise TinyrvllmError(f"{what}token ids must be from 0 to {vocab_size - 1:,}")


def _several(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A list of prompts; a single one (text, or its token ids) becomes a list of one."""
    is_one = isinstance(prompts, str | bytes) or isinstance(next(iter(prompts), ""), int | np.integer)
    return [cast(Prompt, prompts)] if is_one else list(cast(Sequence[Prompt], prompts))
