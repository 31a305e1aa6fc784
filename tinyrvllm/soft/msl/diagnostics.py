"""clang's diagnostics of translated code -> Apple's manner, with the user's own line and a caret."""

import re
from pathlib import Path

_LINE = re.compile(r"^(?P<file>[^\n:]+):(?P<line>\d+):(?P<column>\d+): (?P<rest>.*)$")
_HEADERS = str(Path(__file__).parents[1] / "include")
_OURS = ("namespace (anonymous)::", "msl_user::", "metal::detail::", "(anonymous namespace)::")
# Clang's own vectors and our struct copies have no address spaces: these errors of the syntax-only
# pass say nothing about the user's code, which the real compilation checks anyway.
_FALSE_POSITIVES = (
    "no matching constructor",
    "no viable overloaded",
    "no matching member function",
    "object parameter of type",
    "parameter may not be qualified with an address space",  # an array, which is a pointer
)


def errors(stderr: str) -> list[str]:
    """The error lines."""
    return [line for line in stderr.splitlines() if re.match(r"[^\s].*: (fatal )?error: ", line)]


def address_space_errors(stderr: str) -> list[str]:
    """Errors of the syntax-only pass that concern the user's own files."""
    found = []
    for line in errors(stderr):
        match = _LINE.match(line)
        ours = match is None or match["file"] == "msl_entries" or _HEADERS in match["file"]
        if not ours and not any(text in line for text in _FALSE_POSITIVES):
            found.append(line)
    return found


def render(lines: list[str], sources: dict[str, str]) -> str:
    """`lines` in Apple's manner. `sources`: file name -> the text that the user wrote."""
    texts: dict[tuple[str, int], str] = {}
    for name, source in sources.items():
        texts |= _numbered(name, source)
    return "\n".join(_render(line, texts) for line in lines)


def _render(line: str, texts: dict[tuple[str, int], str]) -> str:
    match = _LINE.match(line)
    for name in _OURS:
        line = line.replace(name, "")
    if match is None:
        return line
    path, number = Path(match["file"]), int(match["line"])
    if (match["file"], number) not in texts and path.is_file():
        texts |= _numbered(match["file"], path.read_text(errors="replace"))
    shown = texts.get((match["file"], number))
    return line if shown is None else f"{line}\n{shown}"


def _numbered(name: str, source: str) -> dict[tuple[str, int], str]:
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
