"""Runs a dispatch and tells what one of its threads did, statement by statement."""

from dataclasses import dataclass
from typing import Any

from tinyrvllm.soft.cpu import native
from tinyrvllm.soft.cpu.execute import Dispatch, Size, run

MOST = 100_000  # notes that are kept; what a thread does later is counted, not shown


@dataclass(frozen=True, slots=True)
class Event:
    file: str
    line: int
    label: str  # what the statement assigned; "" for a statement that is about to run
    value: tuple[float, ...] | tuple[int, ...]


def follow(dispatch: Dispatch, position: Size) -> list[Event]:
    """`position` is the thread's thread_position_in_grid. The kernel's library needs `follow`.

    Raises ValueError where the grid has no such thread.
    """
    d, kernel = dispatch.native, dispatch.kernel
    grid, size = (_three(d.grid_threads), _three(d.group))
    if not all(0 <= p < n for p, n in zip(position, grid, strict=True)):
        raise ValueError(f"the grid has {grid} threads: there is no thread {position}")
    group = tuple(p // n for p, n in zip(position, size, strict=True))
    # A threadgroup at the grid's edge is smaller, and its threads are counted accordingly.
    inside = [p % n for p, n in zip(position, size, strict=True)]
    x, y, _ = (min(n, g - k * n) for n, g, k in zip(size, grid, group, strict=True))
    notes = native.ffi.new("Note[]", MOST)
    followed = native.ffi.new("Followed *")
    followed.group, followed.index = group, (inside[2] * y + inside[1]) * x + inside[0]
    followed.most, followed.notes = MOST, notes
    d.followed = followed
    resident, dispatch.resident = dispatch.resident, [*dispatch.resident, *map(_bytes, (followed, notes))]
    run([dispatch], threads=1)
    d.followed, dispatch.resident = native.ffi.NULL, resident
    events = []
    for note in notes[0 : followed.count]:
        step = kernel.steps[note.step]
        convert = int if note.kind == 2 else float
        value = tuple(convert(v) for v in note.value[0 : note.count])
        events.append(Event(step.file, step.line, step.label if note.kind else "", value))
    return events


def table(events: list[Event], texts: dict[tuple[str, int], str]) -> str:
    """One line for each statement, with what it assigned. `texts`: (file, line) -> source line."""
    lines: list[str] = []
    place: tuple[str, int] | None = None
    for event in events:
        here = (event.file, event.line)
        if here != place:
            lines.append(f"{event.file}:{event.line}: {texts.get(here, '').strip()}")
        if event.label:
            value = ", ".join(f"{v:.6g}" if isinstance(v, float) else str(v) for v in event.value)
            lines[-1] += f"{'  ' if '  -> ' in lines[-1] else '  -> '}{event.label} = {value}"
        place = here
    return "\n".join(lines)


def _bytes(memory: Any) -> tuple[int, int]:
    """The addresses of what cffi owns: in checking mode the notes are accesses, too."""
    start = int(native.ffi.cast("uintptr_t", memory))
    return start, start + len(native.ffi.buffer(memory))


def _three(value: Any) -> Size:
    return value.x, value.y, value.z
