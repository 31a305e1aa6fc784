"""Judges a kernel: runs it on the checking device and says where it first goes wrong.

In this order: it does not compile; the device found a fault (out of bounds, a race, a barrier that
not all reach ...); a wrong value. A wrong value is traced to a line: the thread that wrote it runs
once more, statement by statement, and the first variable that leaves the specification names it.
"""

import functools
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lessons.blame import Blame, blame
from lessons.faults import DIVERGENCE, place_of_fault
from lessons.repair import mistaken_line
from lessons.spec import Case, Size, SpecError, Task, Thread, flat, thread_of
from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.mtl.library import PRELUDE, splice
from tinyrvllm.soft.cpu import access_log
from tinyrvllm.soft.cpu.execute import Dispatch, run
from tinyrvllm.soft.cpu.following import Event, follow
from tinyrvllm.soft.cpu.library import SoftKernel, SoftLibrary, compile_library
from tinyrvllm.soft.cpu.report import Report
from tinyrvllm.soft.msl import MSLError

SEED = 7


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
            self.text_lines = path.read_text(encoding="utf-8").splitlines()
            self.text = PRELUDE + splice(path)
            library = compile_library(self.text, filename=path.name, check=True)
        except MSLError as error:
            raise self._compiler_error(error) from None
        except TinyrvllmError as error:  # an #include of what does not exist
            _, line, what = str(error).split(":", 2)
            raise Wrong(path.name, int(line), what.strip()) from None
        except UnicodeDecodeError:
            raise Wrong(path.name, 1, "expected text in UTF-8, found other bytes") from None
        if task.kernel not in library.functions:
            known = ", ".join(library.functions) or "none"
            raise Wrong(path.name, 1, f"expected a kernel named {task.kernel!r}, found {known}")
        self.library = library

    def _compiler_error(self, error: MSLError) -> Exception:
        place = re.match(r"(.+?):(\d+):(?:\d+:)? (?:fatal )?error: (.*)", str(error))
        if place is None:  # no compiler, or one that is broken: not the student's mistake
            return SpecError(f"cannot judge {self.path.name} here: {error}")
        lines = str(error).splitlines()[1:]
        if place[1] == self.path.name:
            return Wrong(place[1], int(place[2]), f"it does not compile: {place[3]}", *lines)
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
        right = {slot: self._right(case, slot, arrays).all() for slot in sorted(case.expected)}
        wrong = [slot for slot in right if not right[slot]]
        if not wrong and all(r.warning for r in reports):
            return
        # Threads that part at a barrier cause races: they come first. A warning is no fault, but
        # with a wrong value it is the clue.
        reports = sorted(reports, key=lambda r: (r.warning, r.kind not in DIVERGENCE))
        if reports:
            line, told = place_of_fault(self, case, reports[0])
            raise Wrong(self.path.name, line, *told, f"  in the case: {case.title}")
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
            thread = thread_of(case, last.group, last.thread)
            line = last.line_in(self.path.name)
            more.insert(0, f"  written by {thread}, line {line}: {self.line(line)}")
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
            more = [f"  so {wants}", *more, f"  line {line}: {self.line(line)}"]
            return Wrong(self.path.name, line, blamed.text, *more)
        repaired = mistaken_line(self.task, self.path, lambda file: self._passes(file, case))
        if repaired:
            clue = f"  with another line {repaired} the case passes: {self.line(repaired)}"
            return Wrong(self.path.name, repaired, wants, clue, *more)
        events = self.events(case, thread)
        if not writers and events:
            line = events[-1].line
            more.insert(2, f"  the last that it does is line {line}: {self.line(line)}")
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
        group = flat(thread.group, case.groups)
        # Where this thread's own are right, the writer's may be: one of each simdgroup will tell.
        others = range(0, threads, 1 if best else 32)
        for other in [*case.upstream(thread), *(thread_of(case, group, i) for i in others)]:
            if best is not None and best.rank == 0:
                break
            found = blame(self.events(case, other), other, case, self.task.relative)
            if found and (best is None or found.rank < best.rank):
                best = found
        return best

    def line_text(self, number: int) -> str:
        return self.text_lines[number - 1]

    def line(self, number: int) -> str:
        return self.line_text(number).strip()


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
