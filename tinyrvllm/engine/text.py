"""From token ids to text that can be shown at once: whole characters, nothing of a stop string."""

import codecs
from collections.abc import Sequence

from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.model.tokenizer import Tokenizer


class StreamDecoder:
    """Turns tokens into text as they come.

    A character may be spread over several tokens: its text comes with the last of them. Special
    tokens have no text. Bytes that are not UTF-8 become U+FFFD, the same ones however they come.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, id: int) -> str:
        """The whole characters that are known with this token. Raises TinyrvllmError as it does."""
        if self._tokenizer.is_special(id):
            return ""
        return self._utf8.decode(self._tokenizer.token_bytes(id))

    def finish(self) -> str:
        """What is left when no more tokens come: U+FFFD for an unfinished character."""
        return self._utf8.decode(b"", final=True)


class StopStrings:
    """Ends a text before the first of several stop strings, which is not shown.

    The longest end of the text that may still become a stop string is held back, and no more. The
    first is the one that is complete first, so it makes no difference how the text is cut up.
    `stopped` tells whether one has been found; what comes after it is dropped.

    Raises TinyrvllmError for an empty stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise TinyrvllmError("a stop string is empty: it would end every text at once")
        self._stops = stops
        self._held = ""
        self.stopped = False

    def add(self, text: str) -> str:
        """The text that may be shown now that `text` has come."""
        if self.stopped:
            return ""
        text = self._held + text
        # (end, start) of each stop string's first place; of two that end together the longer wins.
        found = [(text.index(s) + len(s), text.index(s)) for s in self._stops if s in text]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)[1]]
        longest = max(map(len, self._stops), default=1) - 1
        ends = (text[start:] for start in range(max(0, len(text) - longest), len(text)))
        self._held = next((e for e in ends if any(s.startswith(e) for s in self._stops)), "")
        return text.removesuffix(self._held)

    def finish(self) -> str:
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held
