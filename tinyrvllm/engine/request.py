"""A request on its way through the engine, and what comes out of it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tinyrvllm.engine.sampler import Sampler, SamplingParams, TokenLogprobs
from tinyrvllm.engine.text import StopStrings, StreamDecoder
from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.model.tokenizer import Tokenizer

# "stop": an end-of-generation token or a stop string; "length": max_tokens or the context's end.
FinishReason = Literal["stop", "length", "abort", "error"]
Prompt = str | bytes | Sequence[int]


class QueueFull(TinyrvllmError):
    """As many requests as may be are in the engine already; try again in `retry_after` seconds."""

    def __init__(self, limit: int, retry_after: int) -> None:
        super().__init__(
            f"{limit} requests run or wait already, the most that may: "
            f"try again in about {retry_after} s"
        )
        self.retry_after = retry_after


@dataclass(frozen=True)
class Delta:
    """What one step added to a request.

    Attributes:
        text: whole characters that can be no part of a stop string.
        token_ids: the tokens sampled; their text may come with a later Delta.
        logprobs: one for each token, if the request asked for them.
        finish_reason: None until the last Delta of a request.
        error: the message, for the finish reason "error".
        seconds: since the request arrived.
        num_cached_tokens: of the prompt, found in the prefix cache.
    """

    request_id: str
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    error: str | None = None
    seconds: float = 0.0
    num_cached_tokens: int = 0


@dataclass
class RequestOutput:
    """One finished (or unfinished) request.

    Attributes:
        text: what was generated, without the stop string that ended it.
        token_ids: every sampled token, the end-of-generation token included.
        finish_reason: "stop" (end-of-generation token or stop string), "length", "abort", "error",
            or None while the request is unfinished.
        first_token_seconds: from the request's arrival until its first token was picked.
        total_seconds: from its arrival until its latest token.
        logprobs: one for each token, if they were asked for.
        num_cached_tokens: of the prompt, found in the prefix cache when the request was admitted.
        error: the message, for the finish reason "error".
    """

    prompt: Prompt
    prompt_token_ids: list[int]
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    first_token_seconds: float = 0.0
    total_seconds: float = 0.0
    request_id: str = ""
    logprobs: list[TokenLogprobs] | None = None
    num_cached_tokens: int = 0
    error: str | None = None

    def add(self, delta: Delta) -> None:
        """Books what came."""
        if delta.token_ids:
            self.first_token_seconds = self.first_token_seconds or delta.seconds
            self.total_seconds = delta.seconds
        self.text += delta.text
        self.token_ids += delta.token_ids
        if delta.logprobs:
            self.logprobs = (self.logprobs or []) + delta.logprobs
        self.finish_reason, self.error = delta.finish_reason, delta.error
        self.request_id, self.num_cached_tokens = delta.request_id, delta.num_cached_tokens


class RequestsFailed(TinyrvllmError):
    """Some requests of a `generate` failed; `outputs` has them all, in the prompts' order."""

    def __init__(self, outputs: list[RequestOutput]) -> None:
        failed = [output for output in outputs if output.error is not None]
        several = f"{len(failed)} of {len(outputs)} requests failed: " if len(outputs) > 1 else ""
        super().__init__(f"{several}{failed[0].error}")
        self.outputs = outputs


class Request:
    """A request inside the engine; only the engine's thread touches it.

    Attributes:
        ids: the prompt and every token sampled since.
        arrival_step: how many steps after its arrival it joins the queue; the scheduler makes it
            the number of that step.
        limit: the most tokens to sample: max_tokens, or what the context leaves.
        computed: how many of `ids` have their keys and values in the cache.
        blocks: the block table; shared ones first.
        state_slot: where the convolution state is kept (LFM2); -1 while not running.
    """

    def __init__(
        self,
        id: str,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        tokenizer: Tokenizer,
        context_length: int,
        arrival_step: int = 0,
    ) -> None:
        self.id = id
        self.ids = list(prompt_ids)
        self.num_prompt = len(self.ids)
        self.params = params
        room = context_length - self.num_prompt + 1
        self.limit = room if params.max_tokens is None else min(params.max_tokens, room)
        self.sampler = Sampler(params, self.ids if params.is_penalised else ())
        self.arrival_step = arrival_step
        self.arrived = time.perf_counter()
        self.computed = 0
        self.blocks: list[int] = []
        self.hashes: list[bytes] = []  # of whole blocks of ids, as far as they have been needed
        self.published = 0  # whole blocks that were offered to the prefix cache
        self.state_slot = -1
        self.saved_state: list[np.ndarray] | None = None  # to begin with, where a prefix was found (LFM2)
        self.num_cached: int | None = None  # prompt tokens found at the first admission
        self.preemptions = 0
        self._tokenizer = tokenizer
        self._decoder = StreamDecoder(tokenizer)
        self._stops = StopStrings(params.stop)

    @property
    def num_generated(self) -> int:
        return len(self.ids) - self.num_prompt

    @property
    def pending(self) -> int:
        """Tokens that must be fed before the next one can be sampled."""
        return len(self.ids) - self.computed

    def append(self, token: int, logprobs: TokenLogprobs | None = None) -> Delta:
        """Takes a sampled token; what may be shown now, and whether this was the last."""
        self.ids.append(token)
        reason: FinishReason | None = None
        if token in self._tokenizer.eos_ids and not self.params.ignore_eos:
            text, reason = "", "stop"
        else:
            text = self._stops.add(self._decoder.add(token))
            if self._stops.stopped:
                reason = "stop"
            elif self.num_generated == self.limit:
                reason = "length"
        if reason and not self._stops.stopped:
            text += self._stops.add(self._decoder.finish()) + self._stops.finish()
            if self._stops.stopped:
                reason = "stop"
        return self._delta(text, [token], [logprobs] if logprobs else None, reason)

    def cut_off(self, reason: FinishReason, error: str | None = None) -> Delta:
        """The last Delta of a request that ends early: what was held back is shown."""
        text = self._stops.add(self._decoder.finish()) + self._stops.finish()
        return self._delta(text, [], None, reason, error)

    def _delta(
        self,
        text: str,
        token_ids: list[int],
        logprobs: list[TokenLogprobs] | None,
        reason: FinishReason | None,
        error: str | None = None,
    ) -> Delta:
        seconds = time.perf_counter() - self.arrived
        cached = self.num_cached or 0
        return Delta(self.id, text, token_ids, logprobs, reason, error, seconds, cached)
