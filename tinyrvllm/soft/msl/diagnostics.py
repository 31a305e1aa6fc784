"""clang's diagnostics of translated code -> Apple's manner, with the user's own line and a caret."""

import re
from dataclasses import dataclass
from pathlib import Path

_PLACED = re.compile(r"(?P<file>[^\s:][^\n:]*):(?P<line>\d+):(?P<column>\d+): (?P<rest>.*)")
_ERROR = re.compile(r"(?:fatal )?error: (.*)")
_SNIPPET = re.compile(r"\s*\d+ \| (.*)")
_STATIC_ASSERT = re.compile(r"static assertion failed(?: due to requirement '.*?')?: ")
_WORD = re.compile(r"(?:metal::make<|metal::caster<)?\s*(\w+|\S)")  # less what the front end wrote
_SOFT = str(Path(__file__).parents[1])
_OURS = ("namespace (anonymous)::", "msl_user::", "metal::detail::", "(anonymous namespace)::")
# Clang's own vectors and our struct copies have no address spaces: these errors of the syntax-only
# pass say nothing about the user's code, which the real compilation checks anyway.
_FALSE_POSITIVES = (
    "no matching constructor",
    "no viable overloaded",
    "no matching member function",
    "object parameter of type",
    "incompatible operand types",
)
# A function whose body had one of these errors is not found when it is called again.
_FOLLOWS = re.compile(r"substitution failure \[with [^\n]*\]$", re.MULTILINE)
# 'device Foo', a whole object out of another address space, which clang cannot copy
_OBJECT = re.compile(
    r"'(?:const |volatile )*(?:device|threadgroup|constant) [^'*&\[]*'(?! \(aka '[^']*[*&])"
)


@dataclass(slots=True)
class Diagnostic:
    file: str
    line: int
    column: int
    message: str
    translated: str = ""  # the line as the compiler saw it
    notes: str = ""

    @property
    def at_pipeline(self) -> bool:
        """An instance of a kernel template over a limit fails alone, when its pipeline is made."""
        instance = re.search(r"template specialization '(?!msl::)", self.notes)
        return "threadgroup memory exceeds" in self.message and instance is not None

    @property
    def in_our_files(self) -> bool:
        return self.file == "msl_entries" or self.file.startswith(_SOFT)


def parse(stderr: str) -> list[Diagnostic]:
    """The errors. One inside our headers is laid where the user's code asked for it."""
    found: list[Diagnostic] = []
    place: Diagnostic | None = None  # of the last message, an error or a note
    for text in stderr.splitlines():
        match, snippet = _PLACED.match(text), _SNIPPET.match(text)
        if match:
            error = _ERROR.match(match["rest"])
            message = error[1] if error else ""
            place = Diagnostic(match["file"], int(match["line"]), int(match["column"]), message)
            if error:
                found.append(place)
            elif found and found[-1].in_our_files and not place.in_our_files:
                place.message = found[-1].message
                found[-1] = place
            elif found:
                found[-1].notes += match["rest"] + "\n"
        elif snippet and place is not None and not place.translated:
            place.translated = snippet[1]
    return found


def address_space_errors(stderr: str) -> list[Diagnostic]:
    """Errors of the syntax-only pass that concern the user's own code."""
    return [
        d
        for d in parse(stderr)
        if not d.in_our_files
        and not any(text in d.message for text in _FALSE_POSITIVES)
        and not _OBJECT.search(d.message + d.notes)
        and not _FOLLOWS.search(d.notes)
    ]


def render(diagnostics: list[Diagnostic], sources: dict[str, str]) -> str:
    """In Apple's manner. `sources`: file name -> the text that the user wrote."""
    texts: dict[tuple[str, int], str] = {}
    for name, source in sources.items():
        texts |= numbered(name, source)
    return "\n".join(_render(d, texts) for d in diagnostics)


def _render(d: Diagnostic, texts: dict[tuple[str, int], str]) -> str:
    message, path = _STATIC_ASSERT.sub("", d.message), Path(d.file)
    for name in _OURS:
        message = message.replace(name, "")
    if (d.file, d.line) not in texts and path.is_file():
        texts |= numbered(d.file, path.read_text(errors="replace"))
    written = texts.get((d.file, d.line))
    if written is None:
        return f"{d.file}:{d.line}:{d.column}: error: {message}"
    column = _written_column(d, written)
    # Tabs stay tabs, so that the caret stands under its character.
    indent = re.sub(r"[^\t]", " ", written[: column - 1])
    return f"{d.file}:{d.line}:{column}: error: {message}\n{written}\n{indent}^"


def _written_column(d: Diagnostic, written: str) -> int:
    """Where the word that the compiler points to stands in the line as the user wrote it.

    Blanks and rewritten words move columns. The n-th occurrence of a word stays the n-th.
    """
    seen = d.translated or written
    word = _WORD.match(seen, d.column - 1)
    if word is None:
        return min(d.column, len(written) + 1)
    same = re.compile(rf"\b{word[1]}\b" if word[1][0].isalnum() else re.escape(word[1]))
    count = len(same.findall(seen[: word.start(1)]))
    places = [m.start() + 1 for m in same.finditer(written)]
    if count < len(places):
        return places[count]
    return len(written) - len(written.lstrip()) + 1


def numbered(name: str, source: str) -> dict[tuple[str, int], str]:
    """(file, line) -> text; #line directives, which a host splices includes with, are followed."""
    texts, number = {}, 1
    for line in source.splitlines():
        directive = re.match(r'#line (\d+) "(.*)"', line)
        if directive:
            number, name = int(directive[1]), directive[2]
        else:
            texts[name, number] = line
            number += 1
    return texts
