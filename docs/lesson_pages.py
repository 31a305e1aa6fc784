"""Writes the site's page of each lesson: its text, its code, what that prints, and its pictures."""

import hashlib
import json
from pathlib import Path

import cells
from make_notebooks import colab

import tinyrvllm

ROOT = Path(__file__).parent.parent


def write(lessons: Path, folder: Path, execute: bool) -> None:
    """A page for each lessons/NN_*.py in `folder`, and an index of them."""
    folder.mkdir(exist_ok=True)
    names = []
    for path in sorted(lessons.glob("[0-9][0-9]_*.py")):
        parts = cells.read(path)
        outputs = _outputs(path, parts, folder) if execute else {}
        _write(folder / f"{path.stem}.md", page(path, parts, outputs))
        names.append(path.stem)
    index = (lessons / "README.md").read_text(encoding="utf-8") if names else "# The lessons\n"
    toc = "\n".join(["```{toctree}", ":maxdepth: 1", "", *names, "```"])
    _write(folder / "index.md", f"{_for_site(index, names)}\n\n{toc}\n")


def page(path: Path, parts: list[cells.Cell], outputs: dict[int, tuple[str, list[str]]]) -> str:
    """Markdown. outputs: line of a code cell -> (what it printed, names of its pictures)."""
    blocks = [f"`lessons/{path.name}` · [open it in Colab]({colab(path.stem)})"]
    for part in parts:
        if part.kind == "text":
            blocks.append(part.source)
            continue
        blocks.append(_fence("python", part.source))
        printed, pictures = outputs.get(part.line, ("", []))
        if printed.strip():
            blocks.append(_fence("text", printed.rstrip()))
        blocks += [f"![{name}](pictures/{name})" for name in pictures]
    # A page starts with its title, whatever the badge says.
    return "\n\n".join([blocks[1], blocks[0], *blocks[2:]]) + "\n"


def _outputs(path: Path, parts: list[cells.Cell], folder: Path) -> dict[int, tuple[str, list[str]]]:
    """Runs a lesson, unless it and the package are what they were at the last run."""
    pictures = folder / "pictures"
    pictures.mkdir(exist_ok=True)
    stamp, kept = _stamp(path), folder / f"{path.stem}.json"
    if kept.exists():
        known = json.loads(kept.read_text(encoding="utf-8"))
        if known["stamp"] == stamp:
            return {int(line): (text, names) for line, text, names in known["outputs"]}
    print(f"running {path.name}", flush=True)
    outputs = []
    lines = [part.line for part in parts if part.kind == "code"]
    for line, printed in zip(lines, cells.run(path, parts, pictures), strict=True):
        words = [word for word in printed.split("\n") if word.startswith("picture: ")]
        shown = "\n".join(word for word in printed.split("\n") if word not in words)
        names = [Path(word.removeprefix("picture: ").strip()).name for word in words]
        outputs.append((line, shown, names))
    _write(kept, json.dumps({"stamp": stamp, "outputs": outputs}))
    return {line: (text, names) for line, text, names in outputs}


def _stamp(path: Path) -> str:
    """Changes with the lesson, its helpers and the package."""
    package = Path(tinyrvllm.__file__).parent
    sources = [path, *sorted(path.parent.glob("*.py"))]
    sources += sorted(p for p in package.rglob("*") if p.suffix in (".py", ".metal", ".h", ".cpp"))
    return hashlib.sha256(b"\0".join(p.read_bytes() for p in sources)).hexdigest()


def _for_site(readme: str, names: list[str]) -> str:
    """lessons/README.md links to files; here they are pages, or files of the repository."""
    for name in names:
        readme = readme.replace(f"({name}.py)", f"({name}.md)")
    return readme.replace("](../docs/", "](../").replace("](exercises", "](../../lessons/exercises")


def _fence(language: str, text: str) -> str:
    ticks = "```"
    while ticks in text:
        ticks += "`"
    return f"{ticks}{language}\n{text}\n{ticks}"


def _write(path: Path, text: str) -> None:
    """Only where it changes something: Sphinx then reads only pages that did."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
