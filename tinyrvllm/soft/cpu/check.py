"""The checking mode: runs one dispatch under observation and reports what went wrong.

A pass without a report does not prove a kernel right. It says that, for these inputs, this grid and
this order of lanes, no access left its buffer, array or variable, nothing unwritten was read from
threadgroup memory, no two accesses raced, and barriers and simd operations were met by all who
must. It says nothing of
  - code that did not run, and values: a wrong index inside the right buffer is no fault;
  - an index that leaves one tensor and stays in the same MTLBuffer, device memory that nobody
    initialised, a thread's own variables read before they are written, and overruns of a range of
    over `guard.COPY_LIMIT` bytes into another bound one;
  - two dispatches: the encoder's hazards are checked by objc_double;
  - what only a GPU has: its compiler, registers, caches, the real order of things.
It is strict where programs in practice are not: threads that write the same value to one place
race, and so do threadgroups that agree through a fence or a relaxed counter.
"""

import functools
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tinyrvllm.soft.cpu import access_log, native
from tinyrvllm.soft.cpu.guard import Guard, Region
from tinyrvllm.soft.cpu.instrument import REST, Site, read_sites
from tinyrvllm.soft.cpu.report import Report, write
from tinyrvllm.soft.cpu.scene import Scene, SourceLines

if TYPE_CHECKING:
    from tinyrvllm.soft.cpu.execute import Dispatch

native.ffi.cdef("""
typedef struct {
    uint64_t address;
    uint32_t kind, size, count;
    Party who, other;
    Variable variable;
} NativeReport;
typedef struct { uint64_t low, high; void *reads, *writes, *pages; } Region;
typedef struct {
    Region *regions;
    uint32_t region_count, report_count, lock;
    NativeReport reports[64];
    Logged *log;
    uint64_t log_most, log_count;
    uint32_t barriers, simd_operations;
} Watch;
void msl_watch_end(Watch *);
uint32_t msl_watch_size(void);
extern const char msl_sites_lead[], msl_sites_rest[];
""")

_ONE_AT_A_TIME = threading.Lock()


@functools.lru_cache(64)
def _sites(library: object, table: str) -> list[Site]:
    return read_sites(_string(getattr(library, table)))


def _site(library: object, number: int) -> Site:
    """What a site number in a report means."""
    return _sites(library, "msl_sites_rest" if number & REST else "msl_sites_lead")[number & ~REST]


def observe(dispatch: "Dispatch", start: Callable[[], None]) -> list[Report]:
    """Runs one dispatch (`start` does) with its buffers guarded.

    Afterwards dispatch.touched() tells what it has touched.
    """
    params, d, ffi = dispatch.kernel.info.params, dispatch.native, native.ffi
    writable = [p.index for p in params if p.access == "read_write" and p.index is not None]
    with _ONE_AT_A_TIME:
        guard = Guard(dispatch.buffers, writable, dispatch.resident)
        regions = ffi.new("Region[]", [_region(r) for r in guard.regions])
        if native.engine(check=True).msl_watch_size() != ffi.sizeof("Watch"):
            raise RuntimeError("check.h and check.py disagree about the size of a Watch")
        watch = ffi.new("Watch *", {"regions": regions, "region_count": len(regions)})
        log = access_log.wanted()
        if log is not None:
            watch.log, watch.log_most = log.room, log.most
        for slot in dispatch.buffers:
            d.buffer[slot] = guard.address(slot)
        d.watch = watch
        try:
            start()
        finally:
            for slot, (address, _) in dispatch.buffers.items():
                d.buffer[slot] = address
            d.watch = ffi.NULL
            native.engine(check=True).msl_watch_end(watch)
        guard.restore()
    dispatch.touched = guard.touched
    if log is not None:
        log.add(dispatch, guard, watch.log_count, functools.partial(_site, dispatch.kernel.library))
        log.dispatches[-1].barriers = watch.barriers
        log.dispatches[-1].simd_operations = watch.simd_operations
    if not watch.report_count:
        return []
    scene = _scene(dispatch, guard)
    found = watch.reports[0 : watch.report_count]
    return _merged(write(r, scene, _string(r.variable.name)) for r in found)


def _region(region: Region) -> dict[str, object]:
    def address(array: np.ndarray) -> object:  # null for an array of nothing
        return native.ffi.cast("void *", array.ctypes.data if array.size else 0)

    return {
        "low": region.low + region.moved,
        "high": region.high + region.moved,
        "reads": address(region.reads),
        "writes": address(region.writes),
        "pages": address(region.pages),
    }


def _scene(dispatch: "Dispatch", guard: Guard) -> Scene:
    kernel, group, grid = dispatch.kernel, dispatch.native.group, dispatch.native.grid_threads
    return Scene(
        kernel.name,
        kernel.info.file,
        kernel.info.params,
        (group.x, group.y, group.z),
        (grid.x, grid.y, grid.z),
        functools.partial(_site, kernel.library),
        SourceLines(kernel.source, kernel.filename),
        guard,
    )


def _merged(reports: Iterable[Report]) -> list[Report]:
    """One for each pair of lines: lane 0 and the other lanes may have code of their own."""
    merged: dict[tuple[object, ...], Report] = {}
    for r in reports:
        key = (r.kind, r.file, r.line, r.other_line, r.slot)
        before = merged[key].count if key in merged else 0
        merged[key] = replace(merged.get(key, r), count=before + r.count)
    return list(merged.values())


def _string(text: Any) -> str:
    return native.ffi.string(text).decode() if text else ""
