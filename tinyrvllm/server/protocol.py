"""What a client may ask: JSON bodies of OpenAI's API, checked, become prompts and parameters.

Fields and defaults: platform.openai.com/docs/api-reference; `top_k`, `min_p`, `repetition_penalty`
and `ignore_eos` are vLLM's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tinyrvllm.engine.sampler import SamplingParams
from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.server.body import APIError, Body, shown

MAX_CHOICES: Final = 128  # answers to one HTTP request: prompts times n
MAX_LOGPROBS: Final = 20
MAX_STOPS: Final = 16

_COMMON: Final = frozenset({
    "model", "stream", "stream_options", "n", "stop", "seed", "max_tokens", "temperature", "top_p",
    "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias",
    "logprobs", "ignore_eos",
})  # fmt: skip
_NUMBERS: Final = (
    "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"
)  # fmt: skip
COMPLETION_FIELDS: Final = _COMMON | {"prompt"}
CHAT_FIELDS: Final = _COMMON | {"messages", "max_completion_tokens", "top_logprobs"}


def named_error(error: TinyrvllmError) -> APIError:
    """The engine's complaint about a parameter: "temperature must be ...", "logit_bias: ..."."""
    name = str(error).split()[0].rstrip(":")
    return APIError(400, str(error), name if name in CHAT_FIELDS else None)


@dataclass(frozen=True)
class Asked:
    """What a request wants, whatever its prompts are.

    Attributes:
        params: sampling parameters, all but `max_tokens`.
        max_tokens: what the client said, or None.
        max_tokens_name: the field in which the client said it.
        include_usage: a stream ends with the token counts.
    """

    params: SamplingParams
    max_tokens: int | None
    max_tokens_name: str
    n: int
    stream: bool
    include_usage: bool

    def for_prompt(self, length: int, context: int, default: int | None) -> list[SamplingParams]:
        """One for each of the n answers to a prompt of `length` tokens. Raises APIError."""
        if length > context:
            raise APIError(
                400,
                f"the prompt has {length:,} tokens, and this model's context holds {context:,}: "
                "shorten the prompt",
                code="context_length_exceeded",
            )
        # The last token is sampled, never fed back: it needs no room in the context.
        room = context - length + 1
        wanted = self.max_tokens
        if wanted is not None and wanted > room:
            raise APIError(
                400,
                f"this model's context holds {context:,} tokens; the prompt has {length:,} and "
                f"{self.max_tokens_name} asks for {wanted:,}, {length + wanted:,} together: "
                "ask for less",
                self.max_tokens_name,
                "context_length_exceeded",
            )
        wanted = wanted or min(room, default or room)
        seed = self.params.seed
        return [
            replace(self.params, max_tokens=wanted, seed=None if seed is None else seed + number)
            for number in range(self.n)
        ]


def read_completion(body: Body) -> Asked:
    """Parameters of /v1/completions. Raises APIError."""
    body.check_fields(COMPLETION_FIELDS)
    count = body.integer("logprobs", 0, MAX_LOGPROBS, -1)
    return _asked(body, "max_tokens", None if count < 0 else count)


def read_chat(body: Body) -> Asked:
    """Parameters of /v1/chat/completions. Raises APIError."""
    body.check_fields(CHAT_FIELDS)
    count = body.integer("top_logprobs", 0, MAX_LOGPROBS, 0)
    wanted = body.flag("logprobs")
    if count and not wanted:
        raise APIError(400, "top_logprobs goes with logprobs: true", "top_logprobs")
    name = "max_completion_tokens"
    named = body.get(name, int, "an integer") is not None
    return _asked(body, name if named else "max_tokens", count if wanted else None)


def _asked(body: Body, max_tokens_name: str, logprobs: int | None) -> Asked:
    stream = body.flag("stream")
    options = body.get("stream_options", dict, "an object")
    if options is not None and not stream:
        raise APIError(400, "stream_options goes with stream: true", "stream_options")
    include_usage = Body(options or {}).flag("include_usage")
    numbers: dict[str, Any] = {name: body.number(name) for name in _NUMBERS}
    top_k = body.integer("top_k", -1, 2**31 - 1, 0)
    seed = body.integer("seed", 0, 2**63 - 1, -1)
    max_tokens = body.integer(max_tokens_name, 1, 2**31 - 1, 0)
    n = body.integer("n", 1, MAX_CHOICES, 1)
    try:
        params = SamplingParams(
            **{name: value for name, value in numbers.items() if value is not None},
            top_k=max(top_k, 0),  # -1 is vLLM's other word for all
            seed=None if seed < 0 else seed,
            stop=body.strings("stop", MAX_STOPS),
            ignore_eos=body.flag("ignore_eos"),
            logit_bias=_logit_bias(body),
            logprobs=logprobs,
        )
    except TinyrvllmError as error:
        raise named_error(error) from None
    return Asked(params, max_tokens or None, max_tokens_name, n, stream, include_usage)


def _logit_bias(body: Body) -> dict[int, float] | None:
    expected = "an object of token ids and numbers from -100 to 100"
    given: Mapping[str, Any] | None = body.get("logit_bias", dict, expected)
    if not given:
        return None
    bias = {}
    for token, value in given.items():
        good = token.isdecimal() and token.isascii() and len(token) < 10
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (good and number and -100 <= value <= 100):
            raise body.wrong("logit_bias", expected)
        bias[int(token)] = float(value)
    return bias


def read_prompts(body: Body) -> list[str | list[int]]:
    """The prompts of /v1/completions: text or token ids, one or several. Raises APIError."""
    expected = "a string, a list of strings, a list of token ids, or a list of those"
    prompt = body.get("prompt", (str, list), expected)
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise body.wrong("prompt", expected)
    if _is_ids(prompt):
        return [prompt]
    if all(isinstance(one, str) or _is_ids(one) for one in prompt):
        return list(prompt)
    raise body.wrong("prompt", expected)


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)


def read_messages(body: Body) -> list[dict[str, Any]]:
    """The conversation of /v1/chat/completions, every content a string. Raises APIError."""
    expected = 'a list of messages like {"role": "user", "content": "Hello"}'
    messages = body.get("messages", list, expected)
    if not messages:
        raise body.wrong("messages", expected)
    return [_message(message, expected) for message in messages]


def _message(message: Any, expected: str) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise APIError(
            400, f"messages must be {expected}, and {shown(message)} is among them", "messages"
        )
    content = message.get("content")
    if isinstance(content, list):  # parts: only text can be read here
        parts = [part.get("text") if isinstance(part, dict) else None for part in content]
        content = None if None in parts else "".join(map(str, parts))
    if not isinstance(content, str):
        raise APIError(
            400,
            'a message\'s content must be a string or a list of {"type": "text", "text": ...}, and '
            f"{shown(message.get('content'))} was given",
            "messages",
        )
    return {**message, "content": content}
