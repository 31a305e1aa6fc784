"""Judges a kernel: runs it on the checking device and says where it first goes wrong.

In this order: it does not compile; the device found a fault (out of bounds, a race, a barrier that
not all reach ...); a wrong value. A wrong value is traced to a line: the thread that wrote it runs
once more, statement by statement, and the first variable that leaves the specification names it.
"""

import functools
import itertools
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lessons.blame import Blame, blame
from lessons.repair import mistaken_line
from lessons.spec import Case, Size, Task, Thread
from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.mtl.library import PRELUDE, splice
from tinyrvllm.soft.cpu import access_log
from tinyrvllm.soft.cpu.execute import Dispatch, run
from tinyrvllm.soft.cpu.following import Event, follow
from tinyrvllm.soft.cpu.library import SoftKernel, SoftLibrary, compile_library
from tinyrvllm.soft.cpu.report import Report
from tinyrvllm.soft.msl import MSLError

SEED = 7
DIVERGENCE = ("barrier-divergence", "early-return", "simd-divergence", "simd-return")


class Wrong(Exception):
    """What is wrong and at which line of the file; str() of it is the report."""

    def __init__(self, file: str, line: int, what: str, *more: str) -> None:
        super().__init__("\n".join([f"{file}:{line}: {what}", *more]))
        self.line = line


@dataclass
class Outcome:
    """One run in checking mode."""

    arrays: list[np.ndarray]
    log: access_log.DispatchLog


class Judge:
    """One file against one task. Raises Wrong from `__init__` when the file does not compile."""

    def __init__(self, task: Task, path: Path) -> None:
        self.task, self.path = task, path
        try:
            self.text = PRELUDE + splice(path)
            library = compile_library(self.text, filename=path.name, check=True)
        except MSLError as error:
            raise self._compiler_error(error) from None
        except TinyrvllmError as error:  # an #include of what does not exist
            raise Wrong(path.name, 1, str(error)) from None
        if task.kernel not in library.functions:
            known = ", ".join(library.functions) or "none"
            raise Wrong(path.name, 1, f"expected a kernel named {task.kernel!r}, found {known}")
        self.library = library

    def _compiler_error(self, error: MSLError) -> Wrong:
        first, _, rest = str(error).partition("\n")
        file, line, *text = first.split(":", 4)
        if line.isdigit() and file == self.path.name:
            return Wrong(file, int(line), f"it does not compile:{text[-1]}", rest)
        return Wrong(self.path.name, 1, f"it does not compile: {error}")

    @functools.cached_property
    def _following(self) -> SoftLibrary:
        return compile_library(self.text, filename=self.path.name, check=True, follow=True)

    # ---- running

    def _dispatch(self, case: Case, follows: bool) -> tuple[Dispatch, list[np.ndarray]]:
        library = self._following if follows else self.library
        info = library.functions[self.task.kernel]
        names = {c.name: index for index, c in info.function_constants.items()}
        constants = {names[name]: value for name, value in case.constants.items() if name in names}
        try:
            kernel: SoftKernel = library.kernel(self.task.kernel, constants)
            arrays = [_aligned(array) for array in case.arguments]
            bound = {slot: (array.ctypes.data, array.nbytes) for slot, array in enumerate(arrays)}
            grid = _times(case.groups, case.threads)
            return Dispatch(kernel, bound, grid, case.threads), arrays
        except MSLError as error:
            raise self._compiler_error(error) from None
        except ValueError as error:  # too many threads or arguments for this kernel
            raise Wrong(self.path.name, info.line, str(error)) from None

    def run(self, case: Case) -> Outcome:
        """Runs a case with everything observed."""
        with access_log.record() as log:
            arrays, _ = self._run(case)
        return Outcome(arrays, log.dispatches[0])

    def _run(self, case: Case) -> tuple[list[np.ndarray], list[Report]]:
        dispatch, arrays = self._dispatch(case, follows=False)
        return arrays, run([dispatch], threads=1)

    def events(self, case: Case, thread: Thread) -> list[Event]:
        """What one thread does, statement by statement, in the student's own file."""
        dispatch, _ = self._dispatch(case, follows=True)
        return [e for e in follow(dispatch, thread.position) if e.file == self.path.name]

    # ---- judging

    def check(self, case: Case) -> None:
        """Runs a case. Raises Wrong at the first thing that is wrong with it."""
        arrays, reports = self._run(case)
        wrong = [slot for slot in sorted(case.expected) if not self._right(case, slot, arrays).all()]
        if not wrong and all(r.warning for r in reports):
            return
        # Threads that part at a barrier cause races: they come first. A warning is no fault, but
        # with a wrong value it is the clue.
        reports = sorted(reports, key=lambda r: (r.warning, r.kind not in DIVERGENCE))
        if reports:
            raise self._fault(case, reports[0])
        raise self._wrong_value(case, wrong[0])

    def _right(self, case: Case, slot: int, arrays: list[np.ndarray]) -> np.ndarray:
        """Which elements are as the specification has them: [elements of expected] of bool."""
        expected = case.expected[slot].reshape(-1)
        found = arrays[slot].reshape(-1).view(expected.dtype)[: expected.size]
        if not np.issubdtype(expected.dtype, np.floating):
            return found == expected
        return np.isclose(
            found.astype(np.float64), expected.astype(np.float64), rtol=self.task.relative,
            atol=self.task.absolute, equal_nan=True,
        )  # fmt: skip

    def _fault(self, case: Case, report: Report) -> Wrong:
        line, lines = report.line, str(report).splitlines()
        head = lines[0]
        if report.file != self.path.name:  # in a helper of ours: the call is the student's
            calls = [text for text in lines if f"from {self.path.name}:" in text]
            line = int(calls[0].split(f"{self.path.name}:")[1].split(":")[0]) if calls else 1
        elif clues := self._index(case, report):
            line, head, lines = clues.line, clues.text, ["", f"  {head}", *lines[1:]]
        elif report.kind == "early-return" and (returns := self._returns_before(line)):
            line, clue = returns[-1], f"threads that return here never reach line {line}"
            head, lines = clue, ["", f"  {head}", *lines[1:]]
        elif report.kind in ("race", "uninitialised"):
            line, clue = self._unordered(case, report)
            if clue:
                head, lines = clue, ["", f"  {head}", *lines[1:]]
        return Wrong(self.path.name, line, head, *lines[1:], f"  in the case: {case.title}")

    def _index(self, case: Case, report: Report) -> Blame | None:
        """A whole number, such as an index, that was wrong before an access went wrong."""
        if "out-of-bounds" not in report.kind and report.kind != "race":
            return None
        w, h, _ = case.threads
        x, y, z = report.thread
        thread = _thread(case, _flat(report.threadgroup, case.groups), (z * h + y) * w + x)
        return blame(self.events(case, thread), thread, case, self.task.relative, whole=True)

    def _returns_before(self, line: int) -> list[int]:
        """Lines of `return` statements in the kernel before a line."""
        lines = self.path.read_text(encoding="utf-8").splitlines()
        start = self.library.functions[self.task.kernel].line
        return [n for n in range(start, line) if re.search(r"\breturn\b", lines[n - 1])]

    def _unordered(self, case: Case, report: Report) -> tuple[int, str]:
        """Where a barrier is missing or does not do: after the earlier of two accesses."""
        earlier, later = report.other_line, report.line
        if report.kind == "uninitialised":
            variable = re.search(r"'(\w+)'", report.message)
            stores = [a.line_in(self.path.name) for a in self.run(case).log.rows
                      if variable and a.name == variable[1]
                      and a.verb != "read" and a.memory == "threadgroup"]  # fmt: skip
            earlier = max((line for line in stores if line < later), default=later)
        if earlier == later or "threadgroups of one dispatch" in report.message:
            return later, ""
        lines = self.path.read_text(encoding="utf-8").splitlines()
        for number in range(earlier, later + 1):
            if "barrier(" in lines[number - 1]:
                return number, f"this does not order line {later} after line {earlier}"
        if report.message.startswith("data race: write") and earlier < later:
            return later, f"no barrier between line {earlier}, which reads, and this line"
        return earlier, f"no barrier between this line and line {later}"

    def _wrong_value(self, case: Case, slot: int) -> Wrong:
        outcome = self.run(case)  # once more, with every access logged
        expected = case.expected[slot]
        found = outcome.arrays[slot].reshape(-1).view(expected.dtype)[: expected.size]
        wrong = np.flatnonzero(~self._right(case, slot, outcome.arrays))
        index, count = int(wrong[0]), wrong.size
        parameters = self.library.functions[self.task.kernel].params
        name = next((p.name for p in parameters if (p.kind, p.index) == ("buffer", slot)), "?")
        place = ", ".join(map(str, np.unravel_index(index, expected.shape)))
        wants = f"{name}[{place}]: yours {found[index]:.6g}, spec {expected.flat[index]:.6g}"
        more = [f"  in the case: {case.title}; {count} of {expected.size} elements are wrong"]
        byte = index * expected.dtype.itemsize
        stores = [a for a in outcome.log.accesses(name) if a.verb != "read"]
        writers = [a for a in stores if a.offset <= byte < a.offset + a.size]
        if writers:
            last = writers[-1]
            thread = _thread(case, last.group, last.thread)
            line = last.line_in(self.path.name)
            more.insert(0, f"  written by {thread}, line {line}: {self._line(line)}")
        else:
            more.insert(0, f"  no thread wrote it: it is as it was before ({found[index]:.6g})")
            line = self.library.functions[self.task.kernel].line
            line = stores[-1].line_in(self.path.name) if stores else line
            if case.owner is None:
                return Wrong(self.path.name, line, wants, *more)
            thread = case.owner(slot, index)
            more.insert(1, f"  expected {thread} to write it")
        blamed = self._blame(case, thread)
        if blamed:
            line = blamed.line
            more = [f"  so {wants}", *more, f"  line {line}: {self._line(line)}"]
            return Wrong(self.path.name, line, blamed.text, *more)
        repaired = mistaken_line(self.task, self.path, lambda file: self._passes(file, case))
        if repaired:
            clue = f"  with another line {repaired} the case passes: {self._line(repaired)}"
            return Wrong(self.path.name, repaired, wants, clue, *more)
        events = self.events(case, thread)
        if not writers and events:
            line = events[-1].line
            more.insert(2, f"  the last that it does is line {line}: {self._line(line)}")
        return Wrong(self.path.name, line, wants, *more)

    def _passes(self, path: Path, case: Case) -> bool:
        try:
            judge = Judge(self.task, path)
            arrays, reports = judge._run(case)
        except Wrong:
            return False
        right = all(judge._right(case, slot, arrays).all() for slot in case.expected)
        return right and all(r.warning for r in reports)

    def _blame(self, case: Case, thread: Thread) -> Blame | None:
        """The first variable that leaves the specification, in this thread or, if it may be made of
        what others computed, in one of those."""
        best = blame(self.events(case, thread), thread, case, self.task.relative)
        threads = case.threads[0] * case.threads[1] * case.threads[2]
        group = _flat(thread.group, case.groups)
        others = (_thread(case, group, index) for index in range(threads))
        for other in itertools.chain(case.upstream(thread), others):
            if best is None or best.rank == 0:
                break
            found = blame(self.events(case, other), other, case, self.task.relative)
            if found and found.rank < best.rank:
                best = found
        return best

    def _line(self, number: int) -> str:
        return self.path.read_text(encoding="utf-8").splitlines()[number - 1].strip()


def _thread(case: Case, group: int, index: int) -> Thread:
    """Whole threadgroups only: an index is the same in each."""
    x, y, _ = case.groups
    groups = (group % x, group // x % y, group // x // y)
    width, height, _ = case.threads
    inside = (index % width, index // width % height, index // width // height)
    position = tuple(
        g * n + i for g, n, i in zip(groups, case.threads, inside, strict=True)
    )
    return Thread(groups, index, position)  # type: ignore[arg-type]


def _flat(group: Size, groups: Size) -> int:
    return (group[2] * groups[1] + group[1]) * groups[0] + group[0]


def thread_at(case_threads: Size, group: Size, index: int) -> Thread:
    """For specs: a thread by its threadgroup and its index there (one-dimensional threadgroups)."""
    position = tuple(g * n for g, n in zip(group, case_threads, strict=True))
    return Thread(group, index, (position[0] + index, position[1], position[2]))


def _times(a: Size, b: Size) -> Size:
    return a[0] * b[0], a[1] * b[1], a[2] * b[2]


def _aligned(array: np.ndarray) -> np.ndarray:
    """A copy that starts at a multiple of 128 bytes, as a buffer does."""
    room = np.empty(array.nbytes + 128, np.uint8)
    start = -room.ctypes.data % 128
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def cases(task: Task, seed: int = SEED) -> list[Case]:
    return task.cases(np.random.default_rng(seed))
