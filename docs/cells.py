"""A lesson as cells: for the site, which runs them and shows what they print, and for notebooks.

A lesson is a script in the percent format: `# %%` starts a cell. A cell marked `[markdown]`, or one
of comments only, is text; the others are code. The module's docstring is text as well.
"""

import ast
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
MARK = "\x1e"  # printed after each cell: what is between two marks is a cell's output
RUNNER = f"""
import sys
from pathlib import Path
source, path = sys.stdin.read(), sys.argv[1]
sys.path[:1] = [str(Path(path).parent), {str(ROOT)!r}]
sys.argv = [path]
names = {{"__name__": "__main__", "__file__": path}}
for cell in source.split({MARK!r}):
    exec(compile(cell, path, "exec"), names)
    print(end={MARK!r}, flush=True)
"""


@dataclass(frozen=True)
class Cell:
    """One cell. line: where it starts in the file, from 1; name: what follows the `%%`."""

    kind: str  # "text" or "code"
    source: str
    line: int
    name: str = ""


def read(path: Path) -> list[Cell]:
    """The cells of a lesson, in order; none is empty."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    cells, start, head = [], 0, "%%"
    docstring = ast.parse(text).body[0]
    if isinstance(docstring, ast.Expr) and isinstance(docstring.value, ast.Constant):
        cells.append(Cell("text", str(docstring.value.value).strip(), 1))
        start = docstring.end_lineno or 0
    for number in [*range(start, len(lines)), len(lines)]:
        if number < len(lines) and not lines[number].startswith("# %%"):
            continue
        cell = _cell(lines[start:number], start + 1, head)
        if cell is not None:
            cells.append(cell)
        if number < len(lines):
            start, head = number + 1, lines[number][2:]
    return cells


def _cell(lines: list[str], line: int, head: str) -> Cell | None:
    """One cell from its lines, or None where there is nothing in it."""
    while lines and not lines[0].strip():
        lines, line = lines[1:], line + 1
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    if not lines:
        return None
    name = head.removeprefix("%%").replace("[markdown]", "").strip()
    comments = all(not text.strip() or text.startswith("#") for text in lines)
    if "[markdown]" in head or comments:
        text = "\n".join(text.removeprefix("#").removeprefix(" ") for text in lines)
        return Cell("text", text, line, name)
    return Cell("code", "\n".join(lines), line, name)


def run(path: Path, cells: list[Cell], pictures: Path) -> list[str]:
    """What each code cell prints, to either stream; pictures go to a folder.

    Raises RuntimeError where the lesson fails, with what it printed.
    """
    code = [cell for cell in cells if cell.kind == "code"]
    # Blank lines in front: errors then name the line of the file.
    padded = MARK.join("\n" * (cell.line - 1) + cell.source for cell in code)
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, str(path)],
        input=padded,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        cwd=ROOT,
        env=os.environ | {"TINYRVLLM_PICTURES": str(pictures), "PYTHONIOENCODING": "utf-8"},
        check=False,
    )
    outputs = done.stdout.split(MARK)
    if done.returncode or len(outputs) != len(code) + 1:
        raise RuntimeError(f"{path.name} ended with status {done.returncode}:\n{done.stdout}")
    return outputs[:-1]


def notebook(cells: list[Cell], badge: str, setup: str) -> str:
    """The cells as a Jupyter notebook (nbformat 4.5), after a cell that installs the package."""
    shown = [Cell("text", badge, 0), Cell("code", setup, 0), *cells]
    made = []
    for number, cell in enumerate(shown):
        common = {"id": f"cell-{number}", "metadata": {}, "source": cell.source.splitlines(True)}
        if cell.kind == "text":
            made.append({"cell_type": "markdown", **common})
        else:
            made.append({"cell_type": "code", "execution_count": None, "outputs": [], **common})
    book = {
        "cells": made,
        "metadata": {
            "accelerator": "GPU",
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"
