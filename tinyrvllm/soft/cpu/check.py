"""The checking mode: runs one dispatch under observation and reports what went wrong.

A pass without a report does not prove a kernel right. It says that, for these inputs, this grid and this order of
lanes, no access left its buffer, array or variable, nothing unwritten was read from threadgroup memory, no two accesses
raced, and barriers and simd operations were met by all who must. It says nothing of
  - code that did not run, and values: a wrong index inside the right buffer is no fault;
  - an index that leaves one tensor and stays in the same MTLBuffer, device memory that nobody initialised, private
    variables read before they are written, and overruns from one range of over `guard.COPY_LIMIT` bytes into another;
  - threadgroups that agree through fences (every plain access of two threadgroups to one byte, one a write, is a race);
  - two dispatches (the encoder's hazards are checked elsewhere), and everything that only a GPU has: its compiler,
    registers, caches, the real order of things.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tinyrvllm.soft.cpu import native
from tinyrvllm.soft.cpu.guard import Guard
from tinyrvllm.soft.cpu.instrument import REST, Site, read_sites
from tinyrvllm.soft.cpu.report import Report, Scene, SourceLines, write

if TYPE_CHECKING:
    from tinyrvllm.soft.cpu.execute import Dispatch

native.ffi.cdef("""
typedef struct { uint32_t thread, group, site; } Party;
typedef struct { const char *name; uint32_t offset, size, slot; } Variable;
typedef struct {
    uint64_t address;
    uint32_t kind, size, count;
    Party who, other;
    Variable variable;
} NativeReport;
typedef struct { uint64_t low, high; void *reads, *writes, *pages; } Region;
typedef struct { Region *regions; uint32_t region_count, report_count, lock; NativeReport reports[64]; } Watch;
void msl_watch_end(Watch *);
extern const char msl_sites_lead[], msl_sites_rest[];
""")


@functools.lru_cache(64)
def _sites(library: object, table: str) -> list[Site]:
    return read_sites(native.ffi.string(getattr(library, table)).decode())


def _site(library: object, number: int) -> Site:
    """What a site number in a report means."""
    return _sites(library, "msl_sites_rest" if number & REST else "msl_sites_lead")[number & ~REST]


def observe(dispatch: "Dispatch", start: Callable[[], None]) -> list[Report]:
    """Runs one dispatch (`start` does) with its buffers guarded; afterwards dispatch.touched tells what it touched."""
    kernel, d, ffi = dispatch.kernel, dispatch.native, native.ffi
    writable = [
        p.index for p in kernel.info.params if p.access == "read_write" and p.index is not None
    ]
    guard = Guard(dispatch.buffers, writable, dispatch.resident)
    regions = ffi.new("Region[]", len(guard.regions))
    watch = ffi.new("Watch *", {"regions": regions, "region_count": len(regions)})
    for native_region, region in zip(regions, guard.regions, strict=True):
        native_region.low, native_region.high = (
            region.low + region.moved,
            region.high + region.moved,
        )
        for name in ("reads", "writes", "pages"):
            setattr(native_region, name, _address(getattr(region, name)))
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
    found = watch.reports[0 : watch.report_count]
    if not found:
        return []
    info = kernel.info
    size = (d.group.x, d.group.y, d.group.z)
    grid = (d.grid_threads.x, d.grid_threads.y, d.grid_threads.z)
    source = SourceLines(kernel.source, info.file)
    scene = Scene(
        kernel.name,
        info.file,
        info.params,
        size,
        grid,
        functools.partial(_site, kernel.library),
        source,
        guard,
    )
    return _merged(write(r, scene, _name(r.variable)) for r in found)


def _merged(reports: Iterable[Report]) -> list[Report]:
    """One for each pair of lines: lane 0 and the other lanes may have code of their own."""
    merged: dict[tuple[object, ...], Report] = {}
    for r in reports:
        key = (r.kind, r.file, r.line, r.other_line, r.slot)
        merged[key] = replace(merged[key], count=merged[key].count + r.count) if key in merged else r
    return list(merged.values())


def _name(variable: Any) -> str:
    return native.ffi.string(variable.name).decode() if variable.name else ""


def _address(array: np.ndarray) -> Any:
    """Null for an array of nothing."""
    return native.ffi.cast("void *", array.ctypes.data if array.size else 0)
