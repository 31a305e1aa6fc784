"""What an exercise asks for: `exercises/NN/spec.py` describes its tasks with these classes.

A task has a file of its own beside its spec: the stub, which the student completes, and a
statement of the same stem in Markdown with its hints.
"""

import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tinyrvllm.kernels.launch import Launch, Span

HERE = Path(__file__).parent
EXERCISES, SOLUTIONS, MUTANTS = HERE / "exercises", HERE / "solutions", HERE / "mutants"
Size = tuple[int, int, int]


class SpecError(Exception):
    """There is no such exercise or file; the text says what there is."""


@dataclass(frozen=True)
class Thread:
    """A thread of a dispatch, as its kernel sees it."""

    group: Size  # threadgroup_position_in_grid
    index: int  # thread_index_in_threadgroup
    position: Size  # thread_position_in_grid

    def __str__(self) -> str:
        return f"thread {self.index} of threadgroup {self.group}"

    @property
    def lane(self) -> int:
        return self.index % 32

    @property
    def simdgroup(self) -> int:
        return self.index // 32


# What a variable of the stub must hold in a thread when it was last assigned; or an array: of all
# that it is assigned, or of its last value each time it is declared. Or (first, last), where
# `first` lists what it may be assigned at first. Causes come before their consequences.
Watched = float | np.ndarray | tuple[Sequence[float], float | np.ndarray]


def nothing_watched(_: Thread) -> dict[str, Watched]:
    return {}


@dataclass(frozen=True)
class Case:
    """One launch of a task's kernel.

    arguments: an array for each buffer slot 0, 1, ...; bytes are an array of uint8.
    expected: slot -> what that array must be afterwards, in the shape that reports shall name.
    watched: what the stub's variables hold in a thread, so that a wrong value can be traced to
        the line where it arose. owner: the thread that should write an element, (slot, flat index).
    upstream: threads whose results a thread uses, beside those of its own threadgroup.
    """

    title: str
    arguments: Sequence[np.ndarray]
    expected: Mapping[int, np.ndarray]
    groups: Size
    threads: Size
    constants: Mapping[str, int | float | bool] = field(default_factory=dict)
    watched: Callable[[Thread], dict[str, Watched]] = nothing_watched
    owner: Callable[[int, int], Thread] | None = None
    upstream: Callable[[Thread], Sequence[Thread]] = lambda _: ()


@dataclass(frozen=True)
class Task:
    """One thing to write. cases[0] is the one whose cost is compared, so it is a small one."""

    number: str  # of the lesson: "05"
    name: str  # stem of its files: "rmsnorm"
    kernel: str
    cases: Callable[[np.random.Generator], list[Case]]
    relative: float = 1e-5  # how far from the expected value, relative and absolute
    absolute: float = 1e-6
    engine: str = ""  # flags of `generate` beside --kernel with which the engine runs this kernel
    suffix = ".metal"

    @property
    def stub(self) -> Path:
        return self.answer()

    def answer(self, folder: Path | None = None) -> Path:
        """Where the answer lies in a folder of answers; by default it takes the stub's place."""
        return (folder or EXERCISES) / self.number / f"{self.name}{self.suffix}"

    @property
    def solution(self) -> Path:
        return SOLUTIONS / self.number / f"{self.name}{self.suffix}"

    @property
    def answers(self) -> list[Path]:
        """Every right answer: NAME.metal, NAME.other.metal, ..."""
        return sorted(self.solution.parent.glob(f"{self.name}.*{self.suffix}")) + [self.solution]

    @property
    def statement(self) -> str:
        """The task in words, without the hints."""
        return self._parts()[0]

    @property
    def hints(self) -> list[str]:
        """From a nudge to nearly the answer."""
        return self._parts()[1:]

    def _parts(self) -> list[str]:
        text = self.stub.with_suffix(".md").read_text(encoding="utf-8")
        return [part.strip() for part in re.split(r"^## Hint \d+\n", text, flags=re.MULTILINE)]


def no_cases(_: np.random.Generator) -> list[Case]:
    return []


@dataclass(frozen=True)
class HostTask(Task):
    """A task in Python: `kernel` is the name of the function to write. `check` calls it.

    check(function, recording) raises what is wrong: recording.wrong(...), or lets pass what the
    device raises; see host.py.
    """

    cases: Callable[[np.random.Generator], list[Case]] = no_cases
    check: Callable[[Any, Any], None] = lambda function, recording: None
    suffix = ".py"


@cache
def tasks(number: str) -> tuple[Task, ...]:
    """The tasks of a lesson. Raises SpecError where there are none."""
    path = EXERCISES / number / "spec.py"
    if not path.is_file():
        raise SpecError(
            f"expected a lesson with exercises ({', '.join(numbers())}), found {number!r}"
        )
    found = importlib.util.spec_from_file_location(f"lessons.exercises.spec_{number}", path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return tuple(module.TASKS)


def numbers() -> list[str]:
    """The lessons that have exercises."""
    return sorted(path.parent.name for path in EXERCISES.glob("[0-9][0-9]/spec.py"))


def all_tasks() -> list[Task]:
    return [task for number in numbers() for task in tasks(number)]


# ---- threads by their numbers


def thread_of(case: Case, group: int, index: int) -> Thread:
    """A thread by the index of its threadgroup in the grid, and its own in the threadgroup."""
    x, y, _ = case.groups
    groups = (group % x, group // x % y, group // x // y)
    width, height, _ = case.threads
    inside = (index % width, index // width % height, index // width // height)
    position = tuple(g * n + i for g, n, i in zip(groups, case.threads, inside, strict=True))
    return Thread(groups, index, position)  # type: ignore[arg-type]


def flat(group: Size, groups: Size) -> int:
    """The index of a threadgroup in the grid."""
    return (group[2] * groups[1] + group[1]) * groups[0] + group[0]


def thread_at(case_threads: Size, group: Size, index: int) -> Thread:
    """For specs: a thread by its threadgroup and its index there (one-dimensional threadgroups)."""
    position = tuple(g * n for g, n in zip(group, case_threads, strict=True))
    return Thread(group, index, (position[0] + index, position[1], position[2]))


# ---- launches of the engine's own kernel modules as cases


class Array:
    """Stands for a buffer in a Span, so that kernels/*.py can lay out a case."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array


def place(array: np.ndarray) -> Span:
    """The array as an argument of a function of tinyrvllm.kernels."""
    return Span(Array(array), 0, array.nbytes)  # type: ignore[arg-type]


def case(title: str, launch: Launch, expected: Mapping[int, np.ndarray], **more: Any) -> Case:
    """The engine's own launch as a case: its grid, its arguments, its parameters."""
    spans = [argument.span for argument in launch.arguments]
    arguments = [span.buffer.array for span in spans]  # type: ignore[attr-defined]
    return Case(
        title,
        [*arguments, np.frombuffer(launch.parameters, np.uint8)],
        expected,
        launch.groups,
        launch.threads,
        dict(launch.constants),
        **more,
    )
