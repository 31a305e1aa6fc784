"""Our docstrings are plain text with Google's sections, not reStructuredText: makes them that."""

import re

SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields|Warns):$")
MARKUP = re.compile(r"(?<!`)([*|\\])(?!`)|(\w)_(?=\W|$)")


def convert(lines: list[str]) -> list[str]:
    """Indented text outside of a section is shown as it is; stars and bars mean themselves."""
    converted: list[str] = []
    in_section = in_block = False
    for line in lines:
        indented = line.startswith("  ")
        if line.strip() and not indented:
            in_section, in_block = bool(SECTION.match(line)), False
            if converted and converted[-1].startswith("  "):
                converted.append("")
        if indented and not in_section:
            if not in_block:
                converted += ["", "::", ""]
            in_block = True
            converted.append("  " + line)
        else:
            converted.append(_plain(line) if line.strip() else line)
    return converted


def _plain(line: str) -> str:
    """Escapes what would be markup, but for what is between backticks; those mean code."""
    parts = line.split("`")
    if len(parts) % 2 == 0:
        return line.replace("`", "'")
    parts[::2] = [
        MARKUP.sub(lambda m: f"\\{m[1]}" if m[1] else f"{m[2]}\\_", part) for part in parts[::2]
    ]
    text = "``".join(parts)
    return text.replace("````", "``")


def setup(app):
    """Called by Sphinx."""

    def process(_app, _what, _name, _object, _options, lines):
        lines[:] = convert(lines)

    app.connect("autodoc-process-docstring", process, priority=100)
    return {"parallel_read_safe": True}
