"""Comparisons of vectors: a bool vector in Metal, an integer vector of 0 and -1 in clang.

`a < b` -> `metal::compared(a < b)`, which makes a boolN of the one and leaves all else alone. Where
only a scalar can stand (the condition of an if, a loop or `?:`) nothing is written.
"""

from tinyrvllm.soft.msl.declarations import Declaration
from tinyrvllm.soft.msl.functions import Function
from tinyrvllm.soft.msl.tokens import Tokens

_COMPARISONS = ("==", "!=", "<=", ">=", "<", ">")
_CONDITIONS = ("if", "while", "for", "switch", "constexpr", "static_assert")
_STOPS = (
    *(",", ";", "?", ":", "&&", "||", "&", "|", "^", "=", "+=", "-=", "*=", "/=", "%=", "&=", "|="),
    *("^=", "return", "case", "else", "do", "(", "[", "{", ")", "]", "}", "[[", "]]", ""),
)


class Comparisons:
    """Finds them before the other passes change the tokens; marks them afterwards."""

    def __init__(
        self, tokens: Tokens, declarations: list[Declaration], functions: list[Function]
    ) -> None:
        self._tokens = tokens
        self._templates = {d.name for d in declarations if d.template}
        self._closing: dict[int, int] = {}  # of template arguments: `>` -> `<`
        self._opening: dict[int, int] = {}
        self._found: dict[int, int] = {}  # first token -> last; lambdas are seen twice
        for f in functions:
            self._scan(*f.body)

    def mark(self) -> None:
        tokens = self._tokens
        for first, last in self._found.items():
            if tokens[first] and tokens[last]:  # and no pass took them out
                tokens[first] = "metal::compared(" + tokens[first]
                tokens[last] += ")"

    def _scan(self, start: int, end: int) -> None:
        tokens = self._tokens
        for i in range(start, end):
            if tokens[i] == "<" and i not in self._opening and (close := self._template(i)):
                self._opening[i], self._closing[close] = close, i
        for i in range(start, end):
            if self._compares(i):
                first, last = self._first(i), self._last(i)
                if not self._scalar(first, last):
                    self._found[first] = last

    def _compares(self, i: int) -> bool:
        tokens = self._tokens
        if tokens[i] not in _COMPARISONS or tokens[i - 1] == "operator":
            return False
        if tokens[i] == ">=":  # or the end of >>=
            return tokens[i - 1] != ">"
        if tokens[i] in ("<", ">"):  # a shift is two of them
            shift = tokens[i] in (tokens[i - 1], tokens[i + 1]) or tokens[i + 1] == ">="
            return not shift and i not in self._opening and i not in self._closing
        return True

    def _template(self, i: int) -> int:
        """The `>` that closes template arguments opened at `i`; 0 where < compares or shifts."""
        tokens = self._tokens
        if tokens.kind(i - 1) != "name" or tokens[i - 1] == "operator" or tokens[i + 1] == "<":
            return 0
        name = tokens[i - 1]
        sure = name in self._templates or name.endswith(("_t", "_v"))
        unlikely = () if sure else ("?", "&&", "||")
        depth, k = 1, i + 1
        while depth:
            if tokens[k] in ("(", "["):
                k = tokens.after(k)
                continue
            if tokens[k] in (";", "{", ")", "]", "}", "", *unlikely):
                return 0
            depth += (tokens[k] == "<") - (tokens[k] == ">")
            k += 1
        return k - 1

    def _first(self, i: int) -> int:
        """The first token of the expression with the comparison at `i`."""
        tokens = self._tokens
        while True:
            before = i - 1
            if tokens[before] in (")", "]", "]]") or (tokens[before] == "}" and self._is_value(before)):
                i = tokens.opening(before)
            elif before in self._closing:
                i = self._closing[before]
            elif tokens[before] in _STOPS or before in self._opening:
                return i
            else:
                i = before

    def _last(self, i: int) -> int:
        tokens = self._tokens
        while True:
            after = i + 1
            if tokens[after] in ("(", "[") or tokens[after] == "{" and tokens.kind(i) == "name":
                i = tokens.after(after) - 1
            elif after in self._opening:
                i = self._opening[after]
            elif tokens[after] in _STOPS or after in self._closing:
                return i
            else:
                i = after

    def _is_value(self, brace: int) -> bool:
        """`int2{1, 2}`, and no block that ends."""
        before = self._tokens.opening(brace) - 1
        return self._tokens.kind(before) == "name" and self._tokens[before] not in ("else", "do")

    def _scalar(self, first: int, last: int) -> bool:
        """Whether the value only decides what is done, so that it is a scalar's."""
        tokens = self._tokens
        while tokens[last + 1] != "?":
            opening = self._enclosing(first)
            before = tokens[opening - 1]
            if tokens[opening] != "(" or before in _CONDITIONS:
                return tokens[opening] == "("
            if before in (")", "]", ">") or (tokens.kind(opening - 1) == "name" and before != "return"):
                return False  # the argument of a call
            first, last = opening, tokens.after(opening) - 1
        return True

    def _enclosing(self, i: int) -> int:
        """The bracket around token `i` of a function's body."""
        tokens = self._tokens
        while tokens[i - 1] not in ("(", "{", "["):
            i = tokens.opening(i - 1) if tokens[i - 1] in (")", "}", "]", "]]") else i - 1
        return i - 1
