"""Every access of a dispatch in checking mode, one by one: what pictures and cost tables are made of.

    with access_log.record() as log:
        ...                        # run kernels of a library compiled with check=True, or "soft:check"
    for access in log.dispatches[0].accesses(): ...

Threadgroups come in order of their index; inside one, accesses are in the order in which they were
made: lanes one after another, up to the next barrier or simd operation.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tinyrvllm.soft.cpu import native
from tinyrvllm.soft.cpu.instrument import ATOMIC, READ, WRITE, Site
from tinyrvllm.soft.cpu.scene import SIMDGROUP, Triple

if TYPE_CHECKING:
    from tinyrvllm.soft.cpu.execute import Dispatch
    from tinyrvllm.soft.cpu.guard import Guard

native.ffi.cdef("""
typedef struct { uint32_t thread, group, site; } Party;
typedef struct { const char *name; uint32_t offset, size, slot; } Variable;
typedef struct {
    uint64_t address;
    uint32_t size, what, step;
    Party who;
    Variable variable;
} Logged;
""")
LOGGED = np.dtype(  # a Logged as numpy sees it
    [(name, np.uint64 if name in ("address", "variable") else np.uint32)
     for name in ("address", "size", "what", "step", "thread", "group", "site", "variable",
                  "start", "length", "slot")],
    align=True,
)  # fmt: skip
MOST = 1 << 20  # accesses of one dispatch that are kept; 56 bytes each while it runs


class Access(NamedTuple):
    """One load or store of the user's code."""

    group: int  # index of its threadgroup in the grid
    thread: int  # index in the threadgroup; of a simdgroup's first lane where `whole_simdgroup`
    whole_simdgroup: bool  # a simdgroup_load or simdgroup_store: all lanes together
    verb: str  # "read", "write" or "atomic"
    memory: str  # "device" or "threadgroup"
    name: str  # of the kernel's argument or the threadgroup variable
    offset: int  # bytes from its start
    size: int  # bytes
    step: int  # threadgroup barriers that its threadgroup has passed
    file: str
    line: int
    callers: tuple[tuple[str, int], ...]  # (file, line) of the calls around it, innermost first

    def line_in(self, file: str) -> int:
        """The line of a file that made it, be it through a function of another file; or 0."""
        places = ((self.file, self.line), *self.callers)
        return next((line for name, line in places if name == file), 0)


class DispatchLog:
    """The accesses of one dispatch."""

    def __init__(self, kernel: str, grid: Triple, group: Triple, missed: int) -> None:
        self.kernel = kernel
        self.grid = grid  # threads
        self.group = group  # threads of a threadgroup
        self.missed = missed  # accesses beyond MOST, which were not kept
        self.barriers = 0  # threadgroup_barriers, counted once for each threadgroup
        self.simd_operations = 0  # and matrix operations and simdgroup_barriers; once a simdgroup
        self.rows: list[Access] = []

    def accesses(self, name: str | None = None, group: int | None = None) -> list[Access]:
        """All accesses, or those to one buffer or variable, or by one threadgroup."""
        return [row for row in self.rows if name in (None, row.name) and group in (None, row.group)]


class AccessLog:
    """What `record` fills: one entry for each dispatch."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept = np.zeros(most, LOGGED)
        self.room: Any = native.ffi.cast("Logged *", self._kept.ctypes.data)
        self.dispatches: list[DispatchLog] = []

    def add(
        self, dispatch: "Dispatch", guard: "Guard", count: int, site: Callable[[int], Site]
    ) -> None:
        """Makes sense of what the native side has left in `room`."""
        params, d = dispatch.kernel.info.params, dispatch.native
        names = {(p.kind, p.index): p.name for p in params}
        grid, group = ((size.x, size.y, size.z) for size in (d.grid_threads, d.group))
        log = DispatchLog(dispatch.kernel.name, grid, group, max(0, count - self.most))
        kept = self._kept[: min(count, self.most)]
        # Workers run threadgroups side by side; each threadgroup's own order is kept.
        kept = kept[np.argsort(kept["group"], kind="stable")]
        site, text, locate = functools.cache(site), functools.cache(_text), _locator(guard)
        for address, size, what, step, thread, index, number, variable, _, length, slot in (
            kept.tolist()
        ):
            offset, memory = address, "threadgroup"
            if variable:
                name = text(variable)
            elif length:
                name = names.get(("threadgroup", slot), f"threadgroup({slot})")
            else:
                place = locate(address)
                if place is None:
                    continue  # a constant of the program, or a built-in value
                (slot, offset), memory = place, "device"
                name = names.get(("buffer", slot), f"buffer({slot})")
            where, whole = site(number), thread >= SIMDGROUP
            log.rows.append(
                Access(
                    index, (thread - SIMDGROUP) * 32 if whole else thread, whole, _verb(what),
                    memory, name, offset, size, step, where.file, where.line, where.callers,
                )
            )  # fmt: skip
        self.dispatches.append(log)


def _text(address: int) -> str:
    return native.ffi.string(native.ffi.cast("char *", address)).decode()


def _locator(guard: "Guard") -> Callable[[int], tuple[int, int] | None]:
    """`guard.locate`, quickly for an address in a buffer that is bound at one slot."""
    regions = [(r.low + r.moved, r.high + r.moved, r.slots[0], guard.address(r.slots[0]))
               for r in guard.regions if len(r.slots) == 1]  # fmt: skip

    def locate(address: int) -> tuple[int, int] | None:
        for low, high, slot, start in regions:
            if low <= address < high:
                return slot, address - start
        return guard.locate(address)

    return locate


def _verb(what: int) -> str:
    if what & ATOMIC and what & WRITE:
        return "atomic"
    return "read" if what & READ else "write"


_wanted: AccessLog | None = None


def wanted() -> AccessLog | None:
    """The log that a dispatch should fill now."""
    return _wanted


@contextmanager
def record(most: int = MOST) -> Iterator[AccessLog]:
    """Logs every access of every checked dispatch that runs meanwhile, in whatever thread."""
    global _wanted
    before, _wanted = _wanted, AccessLog(most)
    try:
        yield _wanted
    finally:
        _wanted = before
