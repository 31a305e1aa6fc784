"""What a function of plain Python does, variable by variable: to say where an answer goes wrong.

Our solution and the student's are followed on the same input. The first assignment of the student's
whose variable has another value than ours had at that turn is the line to look at.
"""

import ast
import copy
import importlib.util
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from lessons.host import Recording
from lessons.spec import HostTask

MOST = 20_000  # lines that are followed: an endless loop is an error, not a hang


class Step(NamedTuple):
    """A line has given a variable a new value."""

    line: int
    name: str
    value: Any


class TooLong(Exception):
    """The function ran on and on."""


def follow(function: Callable[..., Any], *arguments: Any) -> tuple[Any, list[Step]]:
    """The function's result and its steps: each assignment, and each change of a list or the like.

    The function gets copies of its arguments.
    """
    steps: list[Step] = []
    seen: dict[str, Any] = {}
    targets = assigned_names(function)
    last, count = 0, 0

    def look(frame: FrameType) -> None:
        for name, value in frame.f_locals.items():
            if name in targets[last] or name not in seen or seen[name] != value:
                seen[name] = copy.deepcopy(value)
                steps.append(Step(last, name, seen[name]))

    def each_line(frame: FrameType, event: str, value: Any) -> Any:
        nonlocal last, count
        if event == "exception":
            return each_line
        if event == "return":
            look(frame)
            steps.append(Step(frame.f_lineno, "the result", copy.deepcopy(value)))
            return each_line
        if last:
            look(frame)
        else:  # the arguments
            seen.update(copy.deepcopy(dict(frame.f_locals)))
        last, count = frame.f_lineno, count + 1
        if count > MOST:
            raise TooLong(f"it did not end within {MOST:,} lines: look for an endless loop")
        return each_line

    def each_call(frame: FrameType, _event: str, _argument: Any) -> Any:
        return each_line if frame.f_code is function.__code__ else None

    own, before = copy.deepcopy(arguments), sys.gettrace()
    sys.settrace(each_call)
    try:
        result = function(*own)
    finally:
        sys.settrace(before)
    return result, steps


def assigned_names(function: Callable[..., Any]) -> dict[int, set[str]]:
    """Line -> the variables that the statement there assigns."""
    found: dict[int, set[str]] = defaultdict(set)
    source = Path(function.__code__.co_filename).read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                names = {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
                for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    found[line] |= names
    return found


def first_difference(theirs: list[Step], ours: list[Step]) -> tuple[Step, Any] | None:
    """The first step of theirs that ours contradict, and the value that ours have there."""
    values: dict[str, list[Any]] = defaultdict(list)
    for step in ours:
        values[step.name].append(step.value)
    turns: dict[str, int] = defaultdict(int)
    for step in theirs:
        turn = turns[step.name]
        turns[step.name] += 1
        if turn < len(values[step.name]) and values[step.name][turn] != step.value:
            return step, values[step.name][turn]
    return None


def compare(
    task: HostTask, function: Any, recording: Recording, title: str, *arguments: Any
) -> None:
    """Runs both on one input. Raises Wrong where the results differ."""
    expected, ours = follow(solution(task), *arguments)
    found, theirs = follow(function, *arguments)
    if found == expected:
        return
    wants = [f"  yours {_short(found)}", f"  spec  {_short(expected)}", f"  in the case: {title}"]
    different = first_difference(theirs, ours)
    if different is None:
        line = theirs[-1].line if theirs else recording.line_of(task.kernel)
        raise recording.wrong(line, f"{task.kernel} returns something else", *wants)
    step, value = different
    raise recording.wrong(
        step.line, f"{step.name} is {_short(step.value)}, expected {_short(value)}", *wants
    )


def solution(task: HostTask) -> Any:
    """Our function."""
    return load(task.solution, task.kernel)


def load(path: Path, name: str) -> Any:
    """A function of a file."""
    found = importlib.util.spec_from_file_location(path.stem.replace(".", "_"), path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return getattr(module, name)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 150 else text[:150] + " ..."
