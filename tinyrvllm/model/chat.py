"""Chat templates: a conversation becomes the text, and the token ids, that a model was trained on.

A GGUF file carries its template as jinja2 source written for Hugging Face's `transformers`, so it
gets the helpers that `transformers` gives it (src/transformers/utils/chat_template_utils.py).
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.model.sandbox import BoundedEnvironment, BudgetError
from tinyrvllm.model.tokenizer import Tokenizer

Message = Mapping[str, Any]  # {"role": "user", "content": "Hello"}, and what a template may know

# A code point that Unicode keeps for the inside of programs: no text holds it, trimming keeps it.
_MARK: Final = "\ufdd0"


class TemplateError(TinyrvllmError):
    """No chat template, a broken one, or messages that it refuses."""


class ChatTemplate:
    """The chat template of a model.

    Raises TemplateError if there is none (`source` is None) or it cannot be compiled.
    """

    def __init__(self, source: str | None, tokenizer: Tokenizer) -> None:
        if source is None:
            raise TemplateError(
                "this model has no chat template: it is a base model, which only continues text. "
                "Give it a prompt instead of messages, or take an instruct model"
            )
        self._tokenizer = tokenizer
        self._special_texts = tokenizer.special_texts
        named = {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id}
        named |= {"unk": tokenizer.unk_id, "pad": tokenizer.pad_id}
        self._special_tokens = {
            f"{name}_token": tokenizer.text(id) for name, id in named.items() if id is not None
        }
        self._environment = BoundedEnvironment(
            extensions=[loopcontrols, _GenerationTag],
            filters={"tojson": _to_json},
            functions={"raise_exception": _raise_exception, "strftime_now": _strftime_now},
        )
        try:
            self._template = self._environment.compile_bounded(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"the model's chat template has a mistake in line {error.lineno}: {error.message}"
            ) from None
        except (BudgetError, RecursionError, ValueError, SyntaxError, MemoryError) as error:
            raise TemplateError(f"the model's chat template cannot be used: {error}") from None

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The conversation as text; `variables` are for templates that know more of them.

        Raises TemplateError, with the template's own words where it refuses the messages.
        """
        roles = [isinstance(m, Mapping) and isinstance(m.get("role"), str) for m in messages]
        if not roles or not all(roles):
            raise TemplateError(
                'a conversation is a list of one or more messages like {"role": "user", "content": '
                f'"Hello"}}, found {str(messages)[:80]}'
            )
        known: dict[str, Any] = {
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._environment.render_bounded(
                self._template, self._special_tokens | known | variables
            )
        except _RefusedError as error:
            advice = ""
            if any(message["role"] == "system" for message in messages):
                advice = " (if it is the system message, put its text into the first user message)"
            raise TemplateError(
                f"the model's chat template refuses these messages: {error}{advice}"
            ) from None
        except BudgetError as error:
            raise TemplateError(f"the model's chat template is stopped: {error}") from None
        except Exception as error:  # noqa: BLE001 - whatever Python's expressions can raise
            kind = type(error).__name__
            raise TemplateError(f"the model's chat template fails: {kind}: {error}") from None

    def encode(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any
    ) -> list[int]:
        """Token ids of the conversation, beginning with BOS where the model wants it.

        The special tokens that the template writes are tokens. The same words inside a message are
        only text: nobody can end their turn, or begin another's, by writing `<|im_end|>`.
        Raises TemplateError.
        """
        text = self.render(
            self._as_data(messages), add_generation_prompt, **self._as_data(variables)
        )
        ids: list[int] = []
        for part in self._tokenizer.split_special(text):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._tokenizer.encode(part.replace(_MARK, ""), add_special=False)
        begin = self._tokenizer.begin  # most templates write it themselves
        return ids if ids[:1] == begin else begin + ids

    def _as_data(self, value: Any) -> Any:
        """A copy in which no string holds a special token's text: marks keep its letters apart."""
        if isinstance(value, str):
            value = value.replace(_MARK, "")
            for special in self._special_texts:
                if special in value:
                    value = value.replace(special, _MARK.join(special))
            return value
        if isinstance(value, Mapping):
            return {key: self._as_data(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._as_data(item) for item in value]
        return value


class _RefusedError(Exception):
    """What a template raises by `raise_exception`."""


class _GenerationTag(Extension):
    """`{% generation %}`: marks the assistant's words for training; here its body is all it is."""

    tags = {"generation"}  # noqa: RUF012 - the name and type jinja2 looks for

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes < > & ' for web pages, which models were not trained on.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise _RefusedError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
