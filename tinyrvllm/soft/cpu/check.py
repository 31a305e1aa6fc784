"""The checking mode's findings, decoded."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinyrvllm.soft.cpu import native

if TYPE_CHECKING:
    from tinyrvllm.soft.cpu.execute import Dispatch

_MOST = 256
_KINDS = {
    1: "out-of-bounds access of device memory",
    2: "data race on threadgroup memory",
    3: "read of uninitialised threadgroup memory",
    4: "threadgroup_barrier not reached by all threads",
    5: "simd operation in diverged control flow",
    6: "out-of-bounds access of threadgroup memory",
}
native.ffi.cdef("""
typedef struct { uint32_t kind, count; uint64_t addr, pc; uint32_t tid, other; } CheckReport;
typedef struct { uint32_t count, pad; CheckReport list[256]; } CheckReports;
""")


@dataclass(frozen=True, slots=True)
class Report:
    kernel: str
    message: str
    thread: int
    other: int
    count: int


class Collector:
    """Gives a list of dispatches a place for findings, and reads them afterwards."""

    def __init__(self, dispatches: Sequence["Dispatch"]) -> None:
        self._dispatches = dispatches
        self._boxes: list[Any] = []

    def __enter__(self) -> "Collector":
        for d in self._dispatches:
            self._boxes.append(native.ffi.new("CheckReports *"))
            d.native.reports = self._boxes[-1]
        return self

    def __exit__(self, *_: object) -> None:
        for d in self._dispatches:
            d.native.reports = native.ffi.NULL

    def reports(self) -> list[Report]:
        found = []
        for d, box in zip(self._dispatches, self._boxes, strict=True):
            for r in box.list[0 : min(box.count, _MOST)]:
                found.append(Report(d.kernel.name, _KINDS[r.kind], r.tid, r.other, r.count))
        return found
