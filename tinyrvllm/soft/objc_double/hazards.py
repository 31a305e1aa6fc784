"""Which dispatches of a concurrent encoder touch the same bytes with no barrier between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .bindings import Bindings
    from .metal_device import MTLBuffer


@dataclass
class Access:
    """One argument of one dispatch."""

    dispatch: int
    kernel: str
    slot: int
    argument: str
    buffer: MTLBuffer
    start: int  # address
    end: int
    writes: bool

    def __str__(self) -> str:
        verb = "writes" if self.writes else "reads"
        return f"dispatch {self.dispatch} ({self.kernel}) {verb} {self.argument!r} ({self.slot})"


class Hazards:
    """The accesses of one encoder since its barriers, and the conflicts found."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._accesses: list[Access] = []
        self._dispatches = 0

    def add(self, kernel: str, bindings: Bindings) -> None:
        """Compares a new dispatch with those it may overlap."""
        assert bindings.pipeline is not None
        new = []
        for parameter in bindings.pipeline.params:
            buffer, start, nbytes = bindings.buffers.get(parameter.index, (None, 0, 0))
            if parameter.kind == "buffer" and buffer is not None:
                new.append(
                    Access(
                        self._dispatches, kernel, parameter.index, parameter.name, buffer, start,
                        start + nbytes, parameter.access != "read",
                    )
                )  # fmt: skip
        for later in new:
            for earlier in self._accesses:
                overlap = earlier.start < later.end and later.start < earlier.end
                if overlap and (earlier.writes or later.writes):
                    self.found.append(
                        f"missing barrier: {earlier}, then {later}, both in {later.buffer}, in a "
                        "concurrent encoder: they may run in any order. Put a barrier between"
                    )
        self._accesses += new
        self._dispatches += 1

    def barrier(self, buffers: set[MTLBuffer] | None) -> None:
        """Orders what came before: for these buffers, or for all."""
        self._accesses = [
            access for access in self._accesses if buffers is not None
            and access.buffer not in buffers
        ]  # fmt: skip
