"""MSL as text, for the linter: comments gone, lines kept; what it declares, and its kernels."""

import re
from collections.abc import Iterator
from typing import NamedTuple

OLDEST = 3.0  # the language of the oldest system that we take, macOS 13
TENSORS = 4.0  # of a source that includes <metal_tensor>: mtl/library.py
NO_TYPES = ("return", "else", "case", "new", "delete", "throw", "goto")


class Source(NamedTuple):
    """A shader with its headers put in place: no comments, strings empty, lines kept."""

    code: str
    version: float  # of the language
    places: list[str]  # "file:line" of each line

    def place(self, position: int) -> str:
        return self.places[self.code.count("\n", 0, position)]


def source(text: str) -> Source:
    """Of MSL text in which our own headers are already put in place."""
    places, file, number = [], "source", 1
    for line in text.splitlines():
        places.append(f"{file}:{number}")
        marker = re.match(r'#line (\d+) "([^"]*)"', line)
        file, number = (marker[2], int(marker[1])) if marker else (file, number + 1)
    code = re.sub(r"//[^\n]*|/\*.*?\*/", _newlines, text, flags=re.DOTALL)
    code = re.sub(r"^#line[^\n]*", "", code, flags=re.MULTILINE)
    version = TENSORS if "<metal_tensor>" in code else OLDEST
    code = code.replace('_Pragma("clang loop unroll(full)")', '_Pragma("")')
    return Source(re.sub(r'"[^"\n]+"', '"?"', code), version, places)


def declared(code: str) -> set[str]:
    """Names that the code declares: functions, types, variables, parameters, macros."""
    found = set(re.findall(r"#\s*define\s+(\w+)", code))
    for macro in re.finditer(r"#\s*define\s+\w+\(([^)]*)\)", code):
        found |= set(re.findall(r"\w+", macro[1]))
    found |= set(re.findall(r"\b(?:struct|enum|typename|class|namespace)\s+(\w+)", code))
    found |= set(re.findall(r"\busing\s+(\w+)\s*=", code))
    for enum in re.finditer(r"\benum\b[^{;]*\{([^}]*)\}", code):
        found |= set(re.findall(r"(\w+)\s*(?:=|,|$)", enum[1]))
    # a type, then the name: `float4 x =`, `device const T *p,`, `Weights load(`, `T (&x)[`
    kind = r"(?:[A-Za-z_]\w*(?:<[^;(){}]*?>)?(?:::\w+)*)"
    for m in re.finditer(
        rf"(?<![\w.]){kind}[\s*&]+(?:\(&)?([A-Za-z_]\w*)\s*(?=[\[\](),;={{:>])", code
    ):
        before = re.match(r"\w+", m[0])
        if before and before[0] not in NO_TYPES:
            found.add(m[1])
            end = code.find(";", m.end())  # and the others of `uint a = 1, b = f(2, 3);`
            if code[m.end() : m.end() + 1] in "=[,;":
                rest = without_brackets(code[m.end() : end])
                found |= set(re.findall(r",\s*[*&]?\s*([A-Za-z_]\w*)", rest))
    return found


def kernels(s: Source) -> Iterator[tuple[re.Match[str], int, int]]:
    """Each kernel's head, and where its body begins and ends."""
    for m in re.finditer(r"\bkernel\s+(\w+)\s+(\w+)\s*\(", s.code):
        brace = s.code.index("{", closing(s.code, m.end() - 1))
        yield m, brace, closing(s.code, brace)


def blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _newlines(match: re.Match[str]) -> str:
    return " " + "\n" * match[0].count("\n")


def closing(code: str, start: int) -> int:
    """The position of the bracket that closes the one at `start`."""
    depth = 0
    for position in range(start, len(code)):
        depth += (code[position] in "([{") - (code[position] in ")]}")
        if depth == 0:
            return position
    return len(code)


def without_brackets(code: str) -> str:
    while (shorter := re.sub(r"\([^()]*\)|\{[^{}]*\}|\[[^\[\]]*\]", "", code)) != code:
        code = shorter
    return code


def split(arguments: str) -> list[str]:
    """At the commas outside brackets."""
    parts, depth = [""], 0
    for c in arguments:
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [part for part in parts if part.strip()]


def statements(code: str) -> Iterator[tuple[int, str]]:
    """What stands at program scope, preprocessor lines apart: up to a ; or a closing brace."""
    code = re.sub(r"^\s*#(?:[^\n]*\\\s*\n)*[^\n]*", blank, code, flags=re.MULTILINE)
    start, depth = 0, 0
    for position, c in enumerate(code):
        depth += (c == "{") - (c == "}")
        if depth == 0 and c in ";}":
            yield start, code[start : position + 1]
            start = position + 1
