"""Following one thread: a note of each statement that it runs, and of what the statement assigned.

MSL_STEP(k) before a statement and MSL_VALUE(k, expression) behind it (entry.h) write to the list
that execute.py hands in; `k` counts the steps found here.
"""

from dataclasses import dataclass

from tinyrvllm.soft.msl.declarations import NOWHERE, Declaration
from tinyrvllm.soft.msl.tokens import Tokens

_ASSIGNMENTS = ("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=")
_NOT_FOLLOWED = ("struct", "using", "typedef", "static_assert", "constexpr", "threadgroup", "union")


@dataclass(frozen=True, slots=True)
class Step:
    file: str
    line: int
    label: str  # what is assigned, as the user wrote it; "" where nothing is


class Follower:
    """Finds the statements before the other passes change the tokens; marks them afterwards."""

    def __init__(self, tokens: Tokens, declarations: list[Declaration]) -> None:
        self._tokens = tokens
        self.steps: list[Step] = []
        self._before: dict[int, str] = {}  # token -> what to write before it
        self._values: list[tuple[int, int, tuple[int, int]]] = []  # end, step, tokens of the label
        self._ends: list[int] = []  # tokens behind which a block that we opened ends
        for d in declarations:
            if d.kind == "function":
                self._block(*d.body)

    def mark(self) -> None:
        tokens = self._tokens
        for end, step, (start, stop) in self._values:
            tokens[end] += f" MSL_VALUE({step}, {tokens.text(start, stop)});"
        for end in self._ends:
            tokens[end] += " }"
        for i, text in self._before.items():
            tokens[i] = text + tokens[i]

    def _block(self, start: int, end: int) -> None:
        i = start + 1
        while i < end:
            i = self._statement(i)

    def _statement(self, i: int) -> int:
        """Notes the statement at `i`; returns the position after it."""
        tokens, word = self._tokens, self._tokens[i]
        if word == "{":
            self._block(i, tokens.after(i))
            return tokens.after(i)
        if word in ("case", "default"):
            return tokens.find(i, ":") + 1
        if word in ("if", "for", "while", "switch"):
            self._step(i)
            return self._branches(i)
        if word == "do":
            return tokens.find(self._nested(i + 1), ";") + 1
        end = self._end(i)
        if word in _NOT_FOLLOWED or end == i:
            return end + 1
        label = self._label(i, end)
        step = self._step(i, label)
        if label != NOWHERE:
            self._values.append((end, step, label))
        return end + 1

    def _branches(self, i: int) -> int:
        paren = i + 2 if self._tokens[i + 1] == "constexpr" else i + 1
        end = self._nested(self._tokens.after(paren))
        if self._tokens[i] == "if" and self._tokens[end] == "else":
            return self._nested(end + 1)
        return end

    def _nested(self, i: int) -> int:
        """The statement that a condition governs: it gets braces where it has none."""
        if self._tokens[i] in ("{", ";"):
            return self._statement(i)
        self._before[i] = "{ "
        end = self._statement(i)
        self._ends.append(end - 1)
        return end

    def _step(self, i: int, label: tuple[int, int] = NOWHERE) -> int:
        place = self._tokens.list[i]
        self.steps.append(Step(place.file, place.line, self._tokens.text(*label)))
        step = len(self.steps) - 1
        self._before[i] = self._before.get(i, "") + f"MSL_STEP({step}); "
        return step

    def _end(self, i: int) -> int:
        """The semicolon that ends a simple statement."""
        while self._tokens[i] not in (";", "}"):
            i = self._tokens.after(i) if self._tokens[i] in ("{", "(", "[") else i + 1
        return i

    def _label(self, start: int, end: int) -> tuple[int, int]:
        """The tokens that name what is assigned: `x`, `a[i]`, `p->n`; empty where nothing is."""
        tokens = self._tokens
        i = start
        while tokens[i] not in _ASSIGNMENTS:
            if i == end or tokens[i] in ("++", "--", "(", "return"):  # not to be evaluated twice
                return NOWHERE
            i = tokens.after(i) if tokens[i] in ("[", "{") else i + 1
        first = i - 1  # back over `.x`, `->x` and `[...]` to the name
        while tokens[first] in ("]", "]]") or tokens[first - 1] in (".", "->"):
            index = tokens[first] in ("]", "]]")
            first = tokens.opening(first) - 1 if index else first - 2
        if tokens.kind(first) != "name":
            return NOWHERE
        is_array = first > start and "[" in (tokens[k] for k in range(first, i))
        return NOWHERE if is_array and tokens[start] != "*" else (first, i)
