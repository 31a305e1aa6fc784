"""Judges a task in Python: the student's function gets a checking device and is watched.

Every dispatch that it records is noted with its line, so that what the device says later (a missing
barrier, a leak) can be traced to it; what is raised at once has its line in the traceback.
"""

import inspect
import re
import runpy
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from lessons.judge import Wrong
from lessons.spec import HostTask
from tinyrvllm.mtl import Buffer, Commands, Device, Encoder

WATCHED = (
    (Device, "buffer"),
    (Device, "commands"),
    (Commands, "encoder"),
    (Commands, "commit"),
    (Commands, "wait"),
    (Encoder, "dispatch"),
    (Encoder, "barrier"),
    (Buffer, "numpy"),
)


@dataclass(frozen=True)
class Call:
    """A call of the bridge by the student's file."""

    name: str  # "dispatch", ...
    line: int
    receiver: Any
    arguments: dict[str, Any]  # by parameter, defaults filled in


class Recording:
    """What the student's function did."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls: list[Call] = []

    def of(self, name: str) -> list[Call]:
        """The calls of one method, in order."""
        return [call for call in self.calls if call.name == name]

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
        """Notes every call of a watched method meanwhile."""
        with ExitStack() as stack:
            for cls, name in WATCHED:
                watched = self._watched(getattr(cls, name))
                stack.enter_context(mock.patch.object(cls, name, watched))
            yield

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def call(*values: Any, **named: Any) -> Any:
            frame = sys._getframe(1)
            if frame.f_code.co_filename == str(self.path):
                bound = signature.bind(*values, **named)
                bound.apply_defaults()
                self.calls.append(
                    Call(original.__name__, frame.f_lineno, values[0], bound.arguments)
                )
            return original(*values, **named)

        return call

    def explain(self, error: BaseException) -> Wrong:
        """What was raised, at the student's line."""
        if isinstance(error, SyntaxError) and error.filename == str(self.path):
            return self.wrong(error.lineno or 1, f"it is no Python: {error.msg}")
        text = str(error)
        hazard = re.search(r"then dispatch (\d+)", text)
        dispatches = self.of("dispatch")
        if hazard and int(hazard[1]) < len(dispatches):
            return self.wrong(dispatches[int(hazard[1])].line, text)
        overrun = re.search(r"buffer\(\d+\) '\w+' has \D*(?:\d+ elements, )?(\d+) bytes", text)
        nbytes = int(overrun[1]) if overrun else None
        short = [c for c in self.of("buffer") if c.arguments["nbytes"] == nbytes]
        if short:
            return self.wrong(short[0].line, f"this buffer is too small: {text}")
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
        with warnings.catch_warnings(record=True) as told, recording.watching():
            warnings.simplefilter("always")
            task.check(function, recording)
        leaks = [text for w in told if "never released" in (text := str(w.message))]
        if leaks:  # after an error, too, objects stay: the error is what counts then
            raise recording.explain(RuntimeError(leaks[0].split(";")[0]))
    except Wrong:
        raise
    except Exception as error:  # noqa: BLE001
        # whatever the student's code raises is a report
        raise recording.explain(error) from None
