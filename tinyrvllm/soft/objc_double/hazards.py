"""Which dispatches of a concurrent encoder touch the same bytes with no barrier between.

Judged after they ran, by the bytes that each has really read and written, where the engine knows
them: two kernels may share a buffer and touch different parts of it. An engine that does not know
is taken at its kernels' word: all that is bound is read, and written unless it is const.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .engine import Range, Run

if TYPE_CHECKING:
    from .bindings import Bindings
    from .metal_device import MTLBuffer


@dataclass
class Argument:
    """A buffer that a dispatch has at a slot, or reaches through an address."""

    slot: int | None
    name: str
    buffer: MTLBuffer
    bound: Range  # addresses
    written: bool  # may be, by the kernel's declaration

    def __str__(self) -> str:
        return f"{self.name!r} at slot {self.slot}" if self.slot is not None else "by its address"


@dataclass
class Dispatched:
    """One dispatch, and the buffers that a barrier has ordered since."""

    number: int
    run: Run
    arguments: list[Argument]
    ordered: set[MTLBuffer] = field(default_factory=set)

    def __str__(self) -> str:
        return f"dispatch {self.number} ({self.run.name})"

    def reads(self, argument: Argument) -> list[Range]:
        """Bytes read through an argument."""
        known = self.run.touched
        return [argument.bound] if known is None else clip(known[0], argument.bound)

    def writes(self, argument: Argument) -> list[Range]:
        """Bytes written through an argument."""
        if not argument.written:
            return []
        known = self.run.touched
        if known is None:
            return [argument.bound] if argument.slot is not None else []
        return clip(known[1], argument.bound)


class Hazards:
    """The dispatches of one encoder, and which of them no barrier keeps apart."""

    def __init__(self) -> None:
        self._open: list[Dispatched] = []  # since the last barrier on everything
        self._pairs: list[tuple[Dispatched, Dispatched, frozenset[MTLBuffer]]] = []
        self._count = 0

    def add(self, run: Run, bindings: Bindings, reached: Iterable[MTLBuffer] = ()) -> None:
        """Notes a dispatch and those that it may overlap. `reached`: through addresses."""
        assert bindings.pipeline is not None
        arguments = []
        for parameter in bindings.pipeline.params:
            buffer, start, nbytes = bindings.buffers.get(parameter.index, (None, 0, 0))
            if parameter.kind == "buffer" and buffer is not None:
                bound, written = (start, start + nbytes), parameter.access != "read"
                name = parameter.name
                arguments.append(Argument(parameter.index, name, buffer, bound, written))
        for buffer in reached:
            bound = (buffer.address, buffer.address + buffer.nbytes)
            arguments.append(Argument(None, "", buffer, bound, True))
        later = Dispatched(self._count, run, arguments)
        self._count += 1
        self._pairs += [(earlier, later, frozenset(earlier.ordered)) for earlier in self._open]
        self._open.append(later)

    def barrier(self, buffers: set[MTLBuffer] | None) -> None:
        """Orders what came before: for these buffers, or for all."""
        if buffers is None:
            self._open.clear()
        for dispatched in self._open:
            dispatched.ordered |= buffers or set()

    def conflicts(self) -> list[str]:
        """What is wrong, after the dispatches ran: one sentence for each pair of them."""
        found = (_conflict(earlier, later, ordered) for earlier, later, ordered in self._pairs)
        return [text for text in found if text]


def _conflict(earlier: Dispatched, later: Dispatched, ordered: frozenset[MTLBuffer]) -> str:
    for first in earlier.arguments:
        if first.buffer in ordered:
            continue
        for second in later.arguments:
            for verbs, a, b in (
                ("writes writes", earlier.writes(first), later.writes(second)),
                ("writes reads", earlier.writes(first), later.reads(second)),
                ("reads writes", earlier.reads(first), later.writes(second)),
            ):
                both = overlap(a, b)
                if both is not None:
                    one, other = verbs.split()
                    start, end = (address - first.buffer.address for address in both)
                    return (
                        f"missing barrier: {earlier} {one} bytes {start} to {end - 1} of "
                        f"{first.buffer} ({first}), then {later} {other} them ({second}). In a "
                        "concurrent encoder they may run in any order: put a barrier between"
                    )
    return ""


def clip(ranges: Iterable[Range], bound: Range) -> list[Range]:
    """The parts of ranges inside a bound."""
    inside = ((max(start, bound[0]), min(end, bound[1])) for start, end in ranges)
    return [(start, end) for start, end in inside if start < end]


def overlap(a: Sequence[Range], b: Sequence[Range]) -> Range | None:
    """The first bytes that two sorted lists of ranges share."""
    i = j = 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            return start, end
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return None
