"""Preprocessed Metal source as a list of tokens that know where they came from."""

import re
from dataclasses import dataclass

from tinyrvllm.soft.msl import MSLError

_LEXEME = re.compile(
    r"""
    (?P<space> (?: \s+ | //[^\n]* | /\*.*?\*/ | ^\#[^\n]* )+ )
  | (?P<string> "(?:\\.|[^"\\\n])*" )
  | (?P<char> '(?:\\.|[^'\\\n])+' )
  | (?P<number> \.?\d (?: [eEpP][+-] | [\w.'] )* )
  | (?P<name> [A-Za-z_]\w* )
  | (?P<sign> :: | -> | \[\[ | \]\] | && | \|\| | <<= | <=> | [-+*/%&|^=!<>]= | \+\+ | -- | . )
    """,
    re.DOTALL | re.VERBOSE | re.MULTILINE,
)
_LINE_MARKER = re.compile(r'^#\s*(?:line\s+)?(\d+)(?:\s+"((?:\\.|[^"])*)")?[^\n]*\n?', re.MULTILINE)
# The preprocessor leaves macros in a pragma alone, and then forgets them.
_UNROLL = re.compile(r"#pragma unroll *\([^\n]*")
_CLOSERS = {"(": ")", "{": "}", "[": "]", "[[": "]]", "<": ">"}


@dataclass(slots=True)
class Token:
    text: str
    kind: str  # string, char, number, name or sign
    space: str  # blanks, comments and line markers before it
    file: str
    line: int
    column: int


class Tokens:
    """The tokens of one translation unit; passes change `text` in place and never move a line."""

    def __init__(self, source: str, filename: str) -> None:
        self.list: list[Token] = []
        self.tail = ""
        space, line, column = "", 1, 1
        for match in _LEXEME.finditer(source):
            text, kind = match.group(), str(match.lastgroup)
            if kind == "space":
                space = _UNROLL.sub("#pragma unroll", text)
                filename, line, column = _after_space(text, filename, line, column)
                continue
            self.list.append(Token(text, kind, space, filename, line, column))
            space, column = "", column + len(text)
        self.tail = space

    def __len__(self) -> int:
        return len(self.list)

    def __getitem__(self, i: int) -> str:
        """The text of token `i`, and "" outside the file, so that passes may look around freely."""
        return self.list[i].text if 0 <= i < len(self.list) else ""

    def __setitem__(self, i: int, text: str) -> None:
        """Raises MSLError outside the file: something that began has not ended."""
        if not 0 <= i < len(self.list):
            raise self.error(i, "unexpected end of file")
        self.list[i].text = text

    def kind(self, i: int) -> str:
        return self.list[i].kind if 0 <= i < len(self.list) else ""

    def source(self) -> str:
        return "".join(t.space + t.text for t in self.list) + self.tail

    def text(self, start: int, end: int) -> str:
        """The text of tokens start..end (exclusive) on one line."""
        parts = [t.text for t in self.list[start:end] if t.text]
        out = ""
        for part in parts:
            glue = out[-1:].isalnum() or out[-1:] == "_"
            out += (" " if glue and (part[0].isalnum() or part[0] == "_") else "") + part
        return out

    def names(self, start: int, end: int) -> set[str]:
        return {t.text for t in self.list[start:end] if t.kind == "name"}

    def blank(self, start: int, end: int) -> None:
        for token in self.list[start:end]:
            token.text = ""

    def opens_template(self, i: int) -> bool:
        """Whether the < at `i` may open template arguments, and is no operator<."""
        return self.kind(i - 1) == "name" and self[i - 1] != "operator"

    def only_for_spaces(self, start: int, end: int) -> None:
        """Leaves tokens start..end to the pass that checks address spaces."""
        first, last = self.list[start], self.list[end - 1]
        first.text = f'\n#ifdef MSL_AS\n# {first.line} "{first.file}"\n{first.text}'
        last.text += f'\n#endif\n# {last.line} "{last.file}"\n'

    def find(self, start: int, stops: str) -> int:
        """First token at or after `start` that is one of the characters `stops`, or the end."""
        i = start
        while i < len(self.list) and (len(self[i]) != 1 or self[i] not in stops):
            i += 1
        return i

    def after(self, opening: int) -> int:
        """The position after the bracket that closes the one at `opening`. Raises MSLError."""
        left = self[opening]
        if left not in _CLOSERS:
            raise self.error(opening, "expected '('")
        right, depth, i = _CLOSERS[left], 0, opening
        while i < len(self.list):
            x = self.list[i].text
            if x == left and (x != "<" or self.opens_template(i)):
                depth += 1
            elif x == right:
                depth -= 1
            elif left == "[" and x in ("[[", "]]"):  # a[b[i]] ends in the token ]]
                depth += 2 if x == "[[" else -2
            elif left == "<" and x == "(":  # a > inside parentheses is a comparison
                i = self.after(i)
                continue
            elif left == "<" and x in (";", "{"):
                break
            if depth <= 0:
                return i + 1
            i += 1
        raise self.error(opening, f"expected '{right}' to match this '{left}'")

    def opening(self, closing: int) -> int:
        """The bracket that the one at `closing` closes; `]]` may be the end of a[b[i]]."""
        right = self[closing]
        pairs = {v: k for k, v in _CLOSERS.items()}
        step = {right: 1, pairs[right]: -1}
        if right in ("]", "]]"):
            step = {"]": 1, "]]": 2, "[": -1, "[[": -2}
        depth, i = 0, closing
        while i >= 0:
            depth += step.get(self[i], 0)
            if depth <= 0:
                return i
            i = self.opening(i) if right == ">" and self[i] == ")" else i - 1
        raise self.error(closing, f"extraneous '{right}'")

    def place(self, i: int) -> tuple[int, int]:
        """The line of token `i`, and its column in the text as it is now."""
        first = i
        while first > 0 and "\n" not in self.list[first].space:
            first -= 1
        before = "".join(t.space + t.text for t in self.list[first:i]) + self.list[i].space
        return self.list[i].line, len(before) - before.rfind("\n")

    def error(self, i: int, message: str) -> MSLError:
        if not self.list:
            return MSLError(f"error: {message}")
        t = self.list[max(0, min(i, len(self.list) - 1))]
        return MSLError(f"{t.file}:{t.line}:{t.column}: error: {message}")


def _after_space(text: str, filename: str, line: int, column: int) -> tuple[str, int, int]:
    """Where the next token stands, after blanks, comments and line markers."""
    for piece in text.split("\n")[:-1]:
        marker = _LINE_MARKER.match(piece + "\n")
        if marker and (column == 1):
            line, filename = int(marker[1]), marker[2] or filename
        else:
            line += 1
        column = 1
    return filename, line, column + len(text) - (text.rfind("\n") + 1)
