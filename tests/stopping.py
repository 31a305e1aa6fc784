"""Stops a function at each of its lines: by Ctrl-C, or dead on the spot, as a killed process is."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any


def stopped_at(line: int, modules: tuple[ModuleType, ...], action: Callable[[], object]) -> bool:
    """Runs `action` with Ctrl-C at the `line`th line (from 1) that runs in one of `modules`.

    Whether it got that far; if not, it has ended by itself.
    """

    def interrupt() -> None:
        raise KeyboardInterrupt

    try:
        _counted(line, modules, action, interrupt)
    except KeyboardInterrupt:
        return True
    return False


def killed_at(line: int, modules: tuple[ModuleType, ...], action: Callable[[], object]) -> bool:
    """The same in a forked child that dies there: nothing is closed, flushed or tidied up."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            _counted(line, modules, action, lambda: os._exit(9))
            status = 0
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9), f"the child failed before line {line}"
    return status == 9


def _counted(
    line: int, modules: tuple[ModuleType, ...], action: Callable[[], object], then: Callable[[], None]
) -> None:
    files = {str(module.__file__) for module in modules}
    passed = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal passed
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            passed += 1
            if passed == line:
                then()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)


def files(folder: Path) -> list[str]:
    """Names in a folder, but for locks; none where there is no folder."""
    return sorted(p.name for p in folder.glob("*") if p.suffix != ".lock")
