"""Answers in OpenAI's shapes: whole, and in chunks of a stream."""

from collections.abc import Sequence
from typing import Any

from tinyrvllm.engine.request import Delta
from tinyrvllm.engine.sampler import TokenLogprobs
from tinyrvllm.model.tokenizer import Tokenizer
from tinyrvllm.server.answers import Answer, Answers


class Completion:
    """/v1/completions."""

    id_prefix = "cmpl"
    whole_kind = chunk_kind = "text_completion"

    def __init__(self, tokenizer: Tokenizer, model: str) -> None:
        self._tokenizer, self._model = tokenizer, model

    def whole(self, answers: Answers) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        choices = [self._choice(answer, answer.finish_reason) for answer in answers.all]
        return self._envelope(answers, self.whole_kind, choices) | {"usage": answers.usage()}

    def chunk(self, answers: Answers, answer: Answer, delta: Delta) -> dict[str, Any]:
        """One event of a stream."""
        return self._envelope(answers, self.chunk_kind, [self._piece(answer, delta)])

    def usage_chunk(self, answers: Answers) -> dict[str, Any]:
        """The last event of a stream, with `stream_options: {"include_usage": true}`."""
        return self._envelope(answers, self.chunk_kind, []) | {"usage": answers.usage()}

    def _envelope(self, answers: Answers, kind: str, choices: list[Any]) -> dict[str, Any]:
        return {
            "id": answers.id,
            "object": kind,
            "created": answers.created,
            "model": self._model,
            "choices": choices,
        }

    def _choice(self, answer: Answer, reason: str | None) -> dict[str, Any]:
        return {
            "index": answer.index,
            "text": answer.text,
            "logprobs": self._logprobs(answer, answer.logprobs),
            "finish_reason": reason,
        }

    def _piece(self, answer: Answer, delta: Delta) -> dict[str, Any]:
        return {
            "index": answer.index,
            "text": delta.text,
            "logprobs": self._logprobs(answer, delta.logprobs or []),
            "finish_reason": delta.finish_reason,
        }

    def _logprobs(self, answer: Answer, tokens: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        if not tokens:
            return None
        offsets = []
        for token in tokens:
            offsets.append(answer.offset)
            if not self._tokenizer.is_special(token.token_id):
                data = self._tokenizer.token_bytes(token.token_id)
                answer.offset += len(answer.utf8.decode(data))
        return {
            "tokens": [self._token(token.token_id) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [
                {self._token(id): logprob for id, logprob in token.top} for token in tokens
            ],
            "text_offset": offsets,
        }

    def _token(self, id: int) -> str:
        """A token as text; one that is no whole character as OpenAI writes it: bytes:\\xe2."""
        data = self._tokenizer.token_bytes(id)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


class Chat(Completion):
    """/v1/chat/completions."""

    id_prefix = "chatcmpl"
    whole_kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def _choice(self, answer: Answer, reason: str | None) -> dict[str, Any]:
        return {
            "index": answer.index,
            "message": {"role": "assistant", "content": answer.text},
            "logprobs": self._logprobs(answer, answer.logprobs),
            "finish_reason": reason,
        }

    def _piece(self, answer: Answer, delta: Delta) -> dict[str, Any]:
        first, answer.begun = not answer.begun, True
        content = {"content": delta.text} if delta.text or first else {}
        return {
            "index": answer.index,
            "delta": {"role": "assistant"} | content if first else content,
            "logprobs": self._logprobs(answer, delta.logprobs or []),
            "finish_reason": delta.finish_reason,
        }

    def _logprobs(self, answer: Answer, tokens: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        if not tokens:
            return None
        content = [
            self._entry(token.token_id, token.logprob)
            | {"top_logprobs": [self._entry(id, logprob) for id, logprob in token.top]}
            for token in tokens
        ]
        return {"content": content, "refusal": None}

    def _entry(self, id: int, logprob: float) -> dict[str, Any]:
        data = list(self._tokenizer.token_bytes(id))
        return {"token": self._token(id), "logprob": logprob, "bytes": data}
