"""C's preprocessor in Python (the package pcpp): a machine with an NVIDIA GPU needs no clang."""

import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tinyrvllm.soft.msl import MSLError

INCLUDE = Path(__file__).parents[1] / "include"
_LINE = re.compile(r'\s*#\s*line\s+(\d+)(?:\s+"([^"]*)")?')
_WHOLE = "whole source"  # what pcpp calls the text
Place = tuple[str, int]  # file and line


def run(source: str, include: Sequence[Path], defines: Sequence[str]) -> str:
    """What `Compiler.preprocess` of soft/cpu does. Raises MSLError."""
    from pcpp import Action, OutputDirective, Preprocessor

    lines, places = _without_line_directives(source)

    class Metal(Preprocessor):
        """Leaves pragmas alone; collects errors with the place that #line gave."""

        def __init__(self) -> None:
            super().__init__()
            self.found: list[str] = []

        def on_error(self, file: str, line: int, message: str) -> None:
            file, line = places[min(line, len(places)) - 1] if file == _WHOLE else (file, line)
            self.found.append(f"{file}:{line}:1: error: {message}")

        def on_directive_handle(
            self, directive: Any, tokens: list[Any], ifpassthru: bool, before: list[Any]
        ) -> bool | None:
            if directive.value == "error":
                text = "".join(token.value for token in tokens).strip()
                self.on_error(directive.source, directive.lineno, text)
            if directive.value in ("error", "warning"):
                raise OutputDirective(Action.IgnoreAndRemove)
            return super().on_directive_handle(directive, tokens, ifpassthru, before)

        def on_include_not_found(
            self, is_malformed: bool, is_system: bool, current: str, name: str
        ) -> None:
            at = self.lastdirective
            self.on_error(at.source, at.lineno, f"'{name}' file not found")
            raise OutputDirective(Action.IgnoreAndRemove)

    metal = Metal()
    for folder in [*include, INCLUDE]:
        metal.add_path(str(folder))
    for definition in defines:
        name, _, value = definition.partition("=")
        metal.define(f"{name} {value or 1}")
    metal.parse("\n".join(lines), _WHOLE)
    out = io.StringIO()
    metal.write(out)
    if metal.found:
        raise MSLError("\n".join(metal.found))
    return "\n".join(_marked(out.getvalue(), places)) + "\n"


def _without_line_directives(source: str) -> tuple[list[str], list[Place]]:
    """pcpp does not know #line: the text without, and where each line stands for its author."""
    lines: list[str] = []
    places: list[Place] = []
    file, number = "program_source", 0
    for line in source.split("\n"):
        number += 1
        directive = _LINE.match(line)
        if directive:
            file, number = directive[2] or file, int(directive[1]) - 1
        lines.append("" if directive else line)
        places.append((file, number))
    return lines, places


def _marked(preprocessed: str, places: list[Place]) -> Iterator[str]:
    """pcpp's output with line markers as the author counts."""
    file, number, expected = _WHOLE, 0, ("", 0)
    for line in preprocessed.split("\n"):
        marker = _LINE.match(line)
        if marker:
            file, number = marker[2] or file, int(marker[1]) - 1
            continue
        number += 1
        ours = file == _WHOLE and 0 < number <= len(places)
        place = places[number - 1] if ours else (file, number)
        if line.strip():
            if place != expected:
                yield f'# {place[1]} "{place[0]}"'
            yield line
            expected = (place[0], place[1] + 1)
