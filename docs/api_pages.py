"""Writes the pages of the API reference: a section for each module of the package's parts."""

from pathlib import Path

import tinyrvllm

PARTS = {
    "engine": "Engine: requests to text",
    "runner": "Runner: where the engine meets a device",
    "model": "Model: files and maths",
    "kernels": "Kernels: one module a layer",
    "mtl": "Metal from Python",
    "soft": "The software device",
}
PUBLIC = "llm"  # has a page of its own
SOFT = ("cpu.library", "cpu.execute", "cpu.check", "cpu.access_log", "cpu.following")


def write(folder: Path) -> None:
    """One Markdown page for each part, and an index."""
    folder.mkdir(exist_ok=True)
    for part, title in PARTS.items():
        sections = [_section(f"tinyrvllm.{part}.{name}") for name in modules(part)]
        _write(folder / f"{part}.md", "\n\n".join([f"# {title}", *sections]))
    names = "\n".join(["../llm", *PARTS])
    toc = f"```{{toctree}}\n:maxdepth: 1\n\n{names}\n```"
    _write(folder / "index.md", f"# API reference\n\n{INTRODUCTION}\n\n{toc}")


INTRODUCTION = """\
Made from the docstrings. `LLM` and `SamplingParams` are the public API; the rest is for who reads or
changes the engine."""


def modules(part: str) -> list[str]:
    """The public modules of a part, in the order of their names."""
    if part == "soft":
        return list(SOFT)
    files = (Path(tinyrvllm.__file__).parent / part).glob("*.py")
    return sorted(path.stem for path in files if path.stem[0] != "_" and path.stem != PUBLIC)


def _section(module: str) -> str:
    return f"## `{module}`\n\n```{{eval-rst}}\n.. automodule:: {module}\n```"


def _write(path: Path, text: str) -> None:
    """Only where it changes something: Sphinx then reads only pages that did."""
    if not path.exists() or path.read_text(encoding="utf-8") != text + "\n":
        path.write_text(text + "\n", encoding="utf-8")
