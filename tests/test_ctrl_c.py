"""Ctrl-C at every line of the package that `generate` runs, from the model's file to the last token.

Each time the command ends with status 130 and without a traceback, nothing unfinished lies in the
cache, and the next `generate` of the same process gives the right text.
"""

import os
import sys
import threading
from linecache import getline
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import tinyrvllm
from tests.stopping import files
from tests.tiny_models import write_model
from tinyrvllm import generate
from tinyrvllm.soft.cpu import cache

PACKAGE = os.path.dirname(tinyrvllm.__file__)
EVERY = {"cpu": 97, "soft": 499}  # lines between two interrupts of the short form
EVERY_LONG = {"cpu": 1, "soft": 7}


class Interrupt:
    """Ctrl-C at the `line`th line (from 1) of the package that runs inside `generate.run`.

    Or at the next line, if it were between the end of a `with` block and its `__exit__`: there
    Python runs no handler of signals, but has a line event of the `with`.
    """

    def __init__(self, line: int) -> None:
        self.left, self.at = line, ""
        self.lines: dict[int, int] = {}  # where each frame was, by its id

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            self.left -= 1
            back = self.lines.get(id(frame), 0) > frame.f_lineno
            self.lines[id(frame)] = frame.f_lineno
            if self.left <= 0 and not self.at and not (back and _is_with(frame)):
                self.at = f"{frame.f_code.co_filename.removeprefix(PACKAGE)}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self


def _is_with(frame: FrameType) -> bool:
    return getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")


@pytest.fixture(params=["cpu", "soft"])
def arguments(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """A command line that works; its cache is our own, and has all that it needs."""
    model, found, get = write_model(tmp_path / "tiny.gguf"), set[Path](), cache.get
    command = [
        "--model",
        str(model),
        "--device",
        request.param,
        "--prompt",
        "Hello",
        "-n",
        "3",
        "--temp",
        "0",
    ]

    def noting(name: str) -> Path | None:
        path = get(name)
        found.update([path] if path else [])
        return path

    with monkeypatch.context() as patch:
        patch.setattr(cache, "get", noting)
        assert generate.main(command) == generate.main(command) == 0
    monkeypatch.setenv("TINYRVLLM_CACHE", str(tmp_path / "cache"))
    for path in found:
        cache.put(path.name, path.read_bytes())
    return command


def interrupted(
    arguments: list[str], line: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, str]:
    """The exit status, and where it was interrupted; "" where it ended before."""
    stop, run, before = Interrupt(line), generate.run, sys.gettrace()

    def traced(args: Any) -> None:
        sys.settrace(stop)
        try:
            run(args)
        finally:
            sys.settrace(before)

    with monkeypatch.context() as patch:
        patch.setattr(generate, "run", traced)
        return generate.main(arguments), stop.at


def check(
    arguments: list[str],
    every: int,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swallowed: list[object] = []  # by Python: what is raised where an object goes, or in a thread
    for hook in (sys, "unraisablehook"), (threading, "excepthook"):
        monkeypatch.setattr(*hook, lambda what: swallowed.append(what.exc_value))
    capfd.readouterr()
    assert generate.main(arguments) == 0
    text, kept = capfd.readouterr().out, files(cache.directory())
    line, at = 1, "-"
    while at:
        status, at = interrupted(arguments, line, monkeypatch)
        out, error = capfd.readouterr()
        where = f"interrupted at {at}, line {line} of those that run: {out!r} {error!r} {swallowed}"
        assert all(isinstance(what, KeyboardInterrupt) for what in swallowed), where
        if at and not swallowed:
            assert (status, error) == (130, "\n"), where
        else:
            assert (status, out, error) == (0, text, ""), where
        swallowed.clear()
        assert files(cache.directory()) == kept, where
        assert generate.main(arguments) == 0, where
        assert capfd.readouterr().out == text, where
        line += every
    assert line > 1000


def test_ctrl_c(
    arguments: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check(arguments, EVERY[arguments[3]], capfd, monkeypatch)


@pytest.mark.long
def test_ctrl_c_at_every_line(
    arguments: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check(arguments, EVERY_LONG[arguments[3]], capfd, monkeypatch)
