"""Judges a task in Python: the student's function gets a checking device and is watched.

Every dispatch that it records is noted with its line, so that what the device says later (a missing
barrier, a leak) can be traced to it; what is raised at once has its line in the traceback.
"""

import re
import runpy
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from lessons.judge import Wrong
from lessons.spec import HostTask, Size
from tinyrvllm.mtl import Encoder


@dataclass(frozen=True)
class Dispatched:
    """One `encoder.dispatch` of the student's."""

    line: int
    kernel: str
    groups: Size
    threads: Size
    buffers: list[str]  # labels


class Recording:
    """What the student's function did."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.dispatches: list[Dispatched] = []

    def wrong(self, line: int, what: str, *more: str) -> Wrong:
        """For specs, to raise."""
        return Wrong(self.path.name, line, what, *more)

    def line_of(self, function: str) -> int:
        """Where a function of the student's file begins."""
        for number, text in enumerate(self.path.read_text(encoding="utf-8").splitlines(), start=1):
            if text.startswith(f"def {function}("):
                return number
        return 1

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Notes every dispatch meanwhile."""
        original = Encoder.dispatch

        def dispatch(encoder: Encoder, pipeline: Any, groups: Any, *rest: Any, **named: Any) -> None:
            original(encoder, pipeline, groups, *rest, **named)
            threads = rest[0] if rest else named["threads"]
            buffers = named.get("buffers", rest[1] if len(rest) > 1 else [])
            labels = [(b[0] if isinstance(b, tuple) else b).label for b in buffers if b]
            line = self._line(traceback.walk_stack(None))
            self.dispatches.append(Dispatched(line, pipeline.name, groups, threads, labels))

        Encoder.dispatch = dispatch  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            Encoder.dispatch = original  # type: ignore[method-assign]

    def _line(self, frames: Iterator[tuple[FrameType, int]]) -> int:
        """The line of the student's file in some frames; the last of them."""
        own = [line for frame, line in frames if frame.f_code.co_filename == str(self.path)]
        return own[0] if own else 1

    def explain(self, error: BaseException) -> Wrong:
        """What was raised, at the student's line."""
        if isinstance(error, SyntaxError) and error.filename == str(self.path):
            return self.wrong(error.lineno or 1, f"it is no Python: {error.msg}")
        text = str(error)
        hazard = re.search(r"then dispatch (\d+)", text)
        if hazard and int(hazard[1]) < len(self.dispatches):
            return self.wrong(self.dispatches[int(hazard[1])].line, text)
        leak = re.search(rf"{re.escape(str(self.path))}:(\d+)", text)
        if leak:
            return self.wrong(int(leak[1]), text.replace(str(self.path), self.path.name))
        own = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == str(self.path)
        ]
        line = (own[-1] if own else None) or 1
        return self.wrong(line, f"{type(error).__name__}: {text}")


def check(task: HostTask, path: Path) -> None:
    """Judges a file. Raises Wrong."""
    recording = Recording(path)
    try:
        function = runpy.run_path(str(path)).get(task.kernel)
        if not callable(function):
            raise recording.wrong(1, f"expected a function {task.kernel}(...), found none")
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a leak is a warning of the device
            with recording.watching():
                task.check(function, recording)
    except Wrong:
        raise
    except Exception as error:  # noqa: BLE001
        # whatever the student's code raises is a report
        raise recording.explain(error) from None
