"""The requests behind one HTTP request: submitted together, awaited together, aborted together."""

import asyncio
import codecs
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from tinyrvllm.engine.llm import LLM, Stream
from tinyrvllm.engine.request import Delta, QueueFull
from tinyrvllm.engine.sampler import SamplingParams, TokenLogprobs
from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.server.body import APIError
from tinyrvllm.server.metrics import Metrics
from tinyrvllm.server.protocol import named_error

Arrived = asyncio.Queue[tuple[int, float, Delta]]  # index of the answer, seconds, what it got


@dataclass
class Answer:
    """One of the n answers to one of the prompts, as far as it is known.

    Attributes:
        started, first, last: when it was submitted, when its first and latest tokens came.
        begun: whether a chunk of it was sent.
        offset: characters of the tokens whose logprobs were given out.
    """

    index: int
    prompt_ids: list[int]
    started: float
    stream: Stream | None = None
    text: str = ""
    num_tokens: int = 0
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    first: float = 0.0
    last: float = 0.0
    begun: bool = False
    offset: int = 0
    utf8: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    def observe(self, delta: Delta, now: float, metrics: Metrics) -> None:
        """Takes a delta of the time `now`."""
        if delta.token_ids:
            if self.num_tokens:
                metrics.between_tokens.observe(now - self.last)
            else:
                metrics.first_token.observe(now - self.started)
                self.first = now
            self.last = now
        self.num_tokens += len(delta.token_ids)
        self.text += delta.text
        self.logprobs += delta.logprobs or []
        if delta.finish_reason:
            self.finish_reason = delta.finish_reason
            metrics.finished[delta.finish_reason] += 1
            metrics.whole.observe(now - self.started)
            metrics.prompt_tokens.observe(len(self.prompt_ids))
            metrics.generated_tokens.observe(self.num_tokens)
            if self.num_tokens > 1:
                metrics.per_token.observe((self.last - self.first) / (self.num_tokens - 1))


class Answers:
    """All answers to one HTTP request. Made and used in the event loop's thread.

    Raises APIError if one cannot be submitted, as where the queue is full (429): then none runs.
    """

    def __init__(
        self,
        llm: LLM,
        metrics: Metrics,
        id: str,
        asked: list[tuple[list[int], SamplingParams]],
    ) -> None:
        self.id = id
        self.created = int(time.time())
        self._metrics = metrics
        self._arrived: Arrived = asyncio.Queue()
        now = time.perf_counter()
        self.all = [Answer(index, ids, now) for index, (ids, _) in enumerate(asked)]
        try:
            for answer, (ids, params) in zip(self.all, asked, strict=True):
                name = id if len(asked) == 1 else f"{id}.{answer.index}"
                callback = _put_into(self._arrived, answer.index)
                answer.stream = llm.submit(ids, params, request_id=name, callback=callback)
        except QueueFull as error:
            self.abort()
            headers = {"Retry-After": str(error.retry_after)}
            raise APIError(429, str(error), code="queue_full", headers=headers) from None
        except TinyrvllmError as error:
            self.abort()
            raise named_error(error) if llm.is_usable else APIError(503, str(error)) from None

    async def deltas(self, patience: float) -> AsyncIterator[tuple[Answer, Delta] | None]:
        """What comes of all answers until they are finished; None after `patience` s of nothing."""
        left = len(self.all)
        while left:
            try:
                async with asyncio.timeout(patience):
                    index, when, delta = await self._arrived.get()
            except TimeoutError:
                yield None
                continue
            answer = self.all[index]
            answer.observe(delta, when, self._metrics)
            left -= delta.finish_reason is not None
            if delta.finish_reason == "error":
                raise APIError(500, delta.error or "the engine failed")
            yield answer, delta

    async def finish(self) -> None:
        """Waits for the end of all. Raises APIError (500) where the model failed."""
        async for _ in self.deltas(patience=3600):
            pass

    def end(self) -> None:
        """Cuts all short: what there is goes out, with the finish reason "abort"."""
        for answer in self.all:
            if answer.stream:
                answer.stream.abort()

    def abort(self) -> None:
        """Ends what still runs, for nobody waits for it."""
        for answer in self.all:
            if answer.stream and not answer.finish_reason:
                answer.stream.abort()
                answer.finish_reason = "abort"
                self._metrics.finished["abort"] += 1

    def usage(self) -> dict[str, Any]:
        """Token counts; a prompt with several answers counts once."""
        prompts = {id(answer.prompt_ids): answer for answer in self.all}.values()
        prompt = sum(len(answer.prompt_ids) for answer in prompts)
        completion = sum(answer.num_tokens for answer in self.all)
        cached = sum(answer.stream.output.num_cached_tokens for answer in prompts if answer.stream)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


def _put_into(arrived: Arrived, index: int) -> Callable[[Delta], None]:
    """What the engine's thread calls; it knows nothing that would keep the stream alive."""
    loop = asyncio.get_running_loop()

    def put(delta: Delta) -> None:
        # A closed loop: the server was forced to end, and nobody waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(arrived.put_nowait, (index, time.perf_counter(), delta))

    return put
