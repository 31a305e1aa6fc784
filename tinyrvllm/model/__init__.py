"""What a model is: its file, its tokenizer, its maths. Knows no GPU."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tinyrvllm.model.config import ModelConfig
from tinyrvllm.model.gguf_file import GGUFFile
from tinyrvllm.model.weights import Weights

if TYPE_CHECKING:
    from tinyrvllm.model.chat import ChatTemplate, Message
    from tinyrvllm.model.tokenizer import Tokenizer


@dataclass
class Model:
    """A model file, opened and checked. Its weights are read when they are asked for."""

    file: GGUFFile
    config: ModelConfig
    weights: Weights
    tokenizer: "Tokenizer"
    chat_template: str | None  # jinja2 source; None where the file has none

    def encode_chat(self, messages: "Sequence[Message]") -> list[int]:
        """Token ids of a conversation up to where the answer begins. Raises TemplateError."""
        return self._chat.encode(messages)

    @cached_property
    def _chat(self) -> "ChatTemplate":
        from tinyrvllm.model.chat import ChatTemplate  # jinja2 is slow to import

        return ChatTemplate(self.chat_template, self.tokenizer)


def load(path: str | os.PathLike[str]) -> Model:
    """Open a GGUF file. Raises GGUFError if it is damaged or holds no supported model."""
    from tinyrvllm.model.tokenizer import Tokenizer  # and so is `tokenizers`

    file = GGUFFile(path)
    config = ModelConfig.from_gguf(file)
    return Model(
        file=file,
        config=config,
        weights=Weights(file, config),
        tokenizer=Tokenizer.from_gguf(file),
        chat_template=file.get("tokenizer.chat_template", str, None),
    )
