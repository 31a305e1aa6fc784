"""clang's diagnostics of translated code -> Apple's manner, with the user's own line and a caret."""

import re
from pathlib import Path

_LINE = re.compile(r"^(?P<file>[^\n:]+):(?P<line>\d+):(?P<column>\d+): (?P<rest>.*)$")
_OURS = ("namespace (anonymous)::", "msl_user::", "metal::detail::", "(anonymous namespace)::")
# Clang's own vectors and our struct copies have no address spaces: these errors of the syntax-only
# pass say nothing about the user's code, which the real compilation checks anyway.
_FALSE_POSITIVES = ("no matching constructor", "no viable overloaded", "no matching member function")


def errors(stderr: str) -> list[str]:
    """The error lines."""
    return [line for line in stderr.splitlines() if re.match(r"[^\s].*: (fatal )?error: ", line)]


def address_space_errors(stderr: str) -> list[str]:
    """Errors of the syntax-only pass that concern the user's own files."""
    found = []
    for line in errors(stderr):
        match = _LINE.match(line)
        ours = match is None or match["file"].endswith((".h", "msl_entries"))
        if not ours and not any(text in line for text in _FALSE_POSITIVES):
            found.append(line)
    return found


def render(lines: list[str], sources: dict[str, str]) -> str:
    """`lines` in Apple's manner. `sources`: file name -> the text that the user wrote."""
    return "\n".join(_render(line, sources) for line in lines)


def _render(line: str, sources: dict[str, str]) -> str:
    match = _LINE.match(line)
    for name in _OURS:
        line = line.replace(name, "")
    if match is None:
        return line
    number, text = int(match["line"]), _source(match["file"], sources)
    if not 1 <= number <= len(text):
        return line
    shown = text[number - 1]
    return f"{line}\n{shown}"


def _source(name: str, sources: dict[str, str]) -> list[str]:
    if name in sources:
        return sources[name].splitlines()
    path = Path(name)
    return path.read_text(errors="replace").splitlines() if path.is_file() else []
