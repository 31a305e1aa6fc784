"""The public API: a model, and text from it. Names are vLLM's."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Literal

import numpy as np

from tinyrvllm import hub
from tinyrvllm import model as models
from tinyrvllm.engine.sampler import Sampler, SamplingParams, check_logits
from tinyrvllm.engine.text import StopStrings, StreamDecoder
from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.runner import open_runner
from tinyrvllm.runner.batch import ALL_MASKED, HAS_NAN, Batch
from tinyrvllm.runner.options import Options

if TYPE_CHECKING:
    from tinyrvllm.runner.report import Report

# Rows of a prompt in one step: enough for fast matrix products, few enough that activations
# stay small and Ctrl-C is heard soon.
PREFILL_CHUNK = 512
BLOCK_SIZE = 16

FinishReason = Literal["stop", "length"]


@dataclass
class RequestOutput:
    """One finished (or interrupted) request.

    Attributes:
        text: what was generated, without the stop string that ended it.
        token_ids: every sampled token, the end-of-generation token included.
        finish_reason: "stop" (end-of-generation token or stop string), "length", or None while
            the request is unfinished.
        first_token_seconds: from the request's start until its first token was picked.
        total_seconds: from its start until its end.
    """

    prompt: str | bytes | Sequence[int]
    prompt_token_ids: list[int]
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    first_token_seconds: float = 0.0
    total_seconds: float = 0.0


class LLM:
    """A model on a device.

    Args:
        model: a path, a built-in name, or a loaded `tinyrvllm.model.Model`.
        device: "auto", "cpu", ... (see `tinyrvllm.runner`).
        context_length: the most tokens of prompt and answer together; default: the model's own.
        options: how a device computes; not for "cpu".

    Raises:
        TinyrvllmError: the model or the device cannot be had, or the context is out of range.
    """

    def __init__(
        self,
        model: str | PathLike[str] | models.Model = hub.DEFAULT_MODEL,
        device: str = "auto",
        context_length: int | None = None,
        options: Options | None = None,
    ) -> None:
        self.model = model if isinstance(model, models.Model) else models.load(hub.resolve(model))
        trained = self.model.config.context_length
        self.context_length = trained if context_length is None else context_length
        if not 1 <= self.context_length <= trained:
            raise TinyrvllmError(
                f"a context of {self.context_length:,} tokens was asked for; "
                f"this model supports 1 to {trained:,}"
            )
        num_blocks = -(-self.context_length // BLOCK_SIZE)
        self._block_table = np.arange(num_blocks, dtype=np.int32)[None]  # [1, num_blocks]
        self._runner = open_runner(self.model, device, num_blocks, BLOCK_SIZE, options)

    def generate(
        self,
        prompts: str | bytes | Sequence[str | bytes | Sequence[int]],
        params: SamplingParams | None = None,
    ) -> list[RequestOutput]:
        """Continues each prompt (text, or token ids); the outputs are in the prompts' order."""
        several = [prompts] if isinstance(prompts, str | bytes) else prompts
        outputs = []
        for prompt in several:
            outputs.append(self.stream(prompt, params).finish())
        return outputs

    def stream(
        self, prompt: str | bytes | Sequence[int], params: SamplingParams | None = None
    ) -> "Request":
        """Continues one prompt; iterating over the result yields text as it is generated."""
        ids = (
            self.model.tokenizer.encode(prompt)
            if isinstance(prompt, str | bytes)
            else [int(token) for token in prompt]
        )
        return Request(self, prompt, ids, params or SamplingParams())

    def chat(
        self, messages: Sequence[dict[str, str]], params: SamplingParams | None = None
    ) -> "Request":
        """Answers a conversation, [{"role": "user", "content": "..."}, ...], as `stream` does.

        Raises:
            TemplateError: the model has no chat template, or it refuses these messages.
        """
        ids = self.model.encode_chat(list(messages))
        return Request(self, messages[-1]["content"], ids, params or SamplingParams())

    def logits(self, ids: Sequence[int], rows: Sequence[int] | None = None) -> np.ndarray:
        """Logits after the given positions of a sequence of tokens; all of them by default.

        Returns:
            float32 [len(rows) or len(ids), vocab_size].
        """
        self.check_prompt(ids)
        wanted = np.arange(len(ids)) if rows is None else np.asarray(rows)
        return self._run(ids, 0, wanted)

    def check_prompt(self, ids: Sequence[int]) -> None:
        """Raises a TinyrvllmError unless these tokens can be a prompt of this model."""
        if not ids:
            raise TinyrvllmError("the prompt is empty: there is nothing to continue")
        if len(ids) > self.context_length:
            raise TinyrvllmError(
                f"the prompt has {len(ids):,} tokens, the context {self.context_length:,}: "
                "shorten the prompt or raise the context (--ctx)"
            )
        vocab_size = self.model.config.vocab_size
        if not 0 <= min(ids) <= max(ids) < vocab_size:
            raise TinyrvllmError(f"token ids must be from 0 to {vocab_size - 1:,}")

    def report(self) -> "Report | None":
        """What the last step cost; None where there is no device."""
        return self._runner.report()

    def _run(self, ids: Sequence[int], start: int, wanted: np.ndarray) -> np.ndarray:
        """Feeds tokens that follow `start` cached ones; logits [len(wanted), vocab] of rows."""
        pieces = []
        for first in range(0, len(ids), PREFILL_CHUNK):
            chunk = ids[first : first + PREFILL_CHUNK]
            rows = wanted[(wanted >= first) & (wanted < first + len(chunk))] - first
            pieces.append(self._runner.run(self._batch(chunk, start + first, rows)))
        return np.concatenate(pieces)

    def _greedy(self, ids: Sequence[int], steps: int) -> Iterator[int]:
        """The likeliest tokens after a prompt; the device may be one step ahead of the reader."""
        last = (len(ids) - 1) // PREFILL_CHUNK * PREFILL_CHUNK
        if last:
            self._run(ids[:last], 0, np.arange(0))
        batch = self._batch(ids[last:], last, np.array([len(ids) - last - 1]))
        for tokens, flags in self._runner.greedy(batch, steps):
            check_logits(bool(flags[0] & HAS_NAN), bool(flags[0] & ALL_MASKED))
            yield int(tokens[0])

    def _batch(self, ids: Sequence[int], start: int, rows: np.ndarray) -> Batch:
        """Tokens that follow `start` cached ones, with logits of some rows."""
        positions = np.arange(start, start + len(ids), dtype=np.int32)
        return Batch(
            token_ids=np.asarray(ids, np.int32),
            positions=positions,
            slot_mapping=positions,  # one sequence, its blocks in order: slot = position
            block_tables=self._block_table,
            context_lens=positions[-1:] + 1,
            query_start=np.array([0, len(ids)], np.int32),
            sample_rows=rows.astype(np.int32),
            state_slots=np.zeros(1, np.int32),
        )


class Request:
    """One prompt on its way: iterate for pieces of text; `output` holds what is known so far.

    Only one request of an LLM runs at a time.
    """

    def __init__(
        self,
        llm: LLM,
        prompt: str | bytes | Sequence[int],
        ids: list[int],
        params: SamplingParams,
    ) -> None:
        llm.check_prompt(ids)
        self.output = RequestOutput(prompt, ids)
        self._llm = llm
        self._params = params

    def __iter__(self) -> Iterator[str]:
        output, params = self.output, self._params
        decoder = StreamDecoder(self._llm.model.tokenizer)
        stops = StopStrings(params.stop)
        start = time.perf_counter()
        for token in self._tokens():
            output.token_ids.append(token)
            output.total_seconds = time.perf_counter() - start
            if len(output.token_ids) == 1:
                output.first_token_seconds = output.total_seconds
            if token in self._llm.model.tokenizer.eos_ids and not params.ignore_eos:
                output.finish_reason = "stop"
                break
            if piece := stops.add(decoder.add(token)):
                output.text += piece
                yield piece
            if stops.stopped:
                output.finish_reason = "stop"
                break
        else:
            output.finish_reason = "length"
        rest = "" if stops.stopped else stops.add(decoder.finish()) + stops.finish()
        if stops.stopped:
            output.finish_reason = "stop"
        if rest:
            output.text += rest
            yield rest

    def finish(self) -> RequestOutput:
        """Runs to the end."""
        for _ in self:
            pass
        return self.output

    def _tokens(self) -> Iterator[int]:
        """Samples until max_tokens or the end of the context; the caller may stop earlier."""
        llm, pending, cached = self._llm, self.output.prompt_token_ids, 0
        count = min(self._params.max_tokens, llm.context_length - len(pending) + 1)
        if self._params.temperature == 0:
            yield from llm._greedy(pending, count)
            return
        sampler = Sampler(self._params)
        for _ in range(count):
            logits = llm._run(pending, cached, np.array([len(pending) - 1]))
            cached += len(pending)
            token = sampler.sample(logits[0])
            yield token
            pending = [token]
