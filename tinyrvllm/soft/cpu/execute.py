"""Runs a list of dispatches: what an MTLCommandBuffer does once it is committed."""

import functools
import os
from collections.abc import Callable, Mapping, Sequence

from tinyrvllm.soft.cpu import check, native, workers
from tinyrvllm.soft.cpu.guard import Range, Touched
from tinyrvllm.soft.cpu.library import SoftKernel
from tinyrvllm.soft.msl.calls import Level

THREADGROUP_BYTES = 32768  # Apple's limit, static plus dynamic
LANE_ORDER = int(os.environ.get("TINYRVLLM_LANE_ORDER", "0"))
CHECK_GAP = 16384  # MSL_GAP of runtime.h: between variables in the checking mode
Size = tuple[int, int, int]


class Dispatch:
    """One kernel launch with everything bound; may be run many times.

    `buffers`: slot -> (address, bytes from there to the end of what is bound). The memory must
    outlive the run. `threadgroup_memory`: [[threadgroup(n)]] index -> bytes. Sizes are threads.
    For the checking mode only: `order` is the seed of the order in which lanes run (0: ascending;
    None: $TINYRVLLM_LANE_ORDER, or 0),
    `resident` are ranges that the kernel reaches through addresses stored in buffers.
    Raises ValueError for what Metal would refuse: unbound arguments, too many threads, too much
    threadgroup memory.
    """

    def __init__(
        self,
        kernel: SoftKernel,
        buffers: Mapping[int, tuple[int, int]],
        threads_per_grid: Size,
        threads_per_threadgroup: Size,
        threadgroup_memory: Mapping[int, int] | None = None,
        order: int | None = None,
        resident: Sequence[Range] = (),
    ) -> None:
        self.kernel = kernel
        self.buffers, self.resident = dict(buffers), resident
        self.touched: Callable[[], Touched] | None = None  # in checking mode, after a run
        self.native = d = native.ffi.new("Dispatch *")
        x, y, z = threads_per_threadgroup
        if min(x, y, z) < 1 or x * y * z > kernel.max_total_threads:
            raise ValueError(
                f"kernel '{kernel.name}' runs with 1 to {kernel.max_total_threads} threads in a "
                f"threadgroup, not {x} x {y} x {z} = {x * y * z}"
            )
        self._bind(buffers)
        self._place(threadgroup_memory or {})
        d.entry, d.entry_rest = kernel.entry, kernel.entry_rest
        d.grid_threads, d.group = threads_per_grid, threads_per_threadgroup
        d.groups = [-(-n // t) for n, t in zip(threads_per_grid, (x, y, z), strict=True)]
        d.level = Level.THREADGROUP if kernel.check else kernel.level
        d.order = LANE_ORDER if order is None else order

    def _bind(self, buffers: Mapping[int, tuple[int, int]]) -> None:
        for slot, (address, length) in buffers.items():
            self.native.buffer[slot] = address
            self.native.length[slot] = length
        for p in self.kernel.info.params:
            if p.kind == "buffer" and p.index not in buffers and p.function_constant is None:
                raise ValueError(
                    f"kernel '{self.kernel.name}' reads buffer({p.index}) ('{p.name}'), "
                    "and nothing is bound there"
                )

    def _place(self, memory: Mapping[int, int]) -> None:
        """Lays [[threadgroup(n)]] arguments one after the other behind the static variables."""
        gap = CHECK_GAP if self.kernel.check else 0
        offset, dynamic = 64 * gap or THREADGROUP_BYTES, 0
        for p in self.kernel.info.params:
            if p.kind != "threadgroup" or p.index is None:
                continue
            if not memory.get(p.index):
                raise ValueError(
                    f"kernel '{self.kernel.name}' needs a length for threadgroup({p.index}) "
                    f"('{p.name}')"
                )
            self.native.tg_offset[p.index] = offset
            self.native.tg_length[p.index] = memory[p.index]
            offset += -(-memory[p.index] // 16) * 16 + gap
            dynamic += -(-memory[p.index] // 16) * 16
        static = self.kernel.static_threadgroup_bytes
        if static + dynamic > THREADGROUP_BYTES:
            raise ValueError(
                f"kernel '{self.kernel.name}' uses {static} bytes of static threadgroup memory and "
                f"is given {dynamic} more: the limit is {THREADGROUP_BYTES}"
            )


def run(dispatches: Sequence[Dispatch], threads: int | None = None) -> list[check.Report]:
    """Runs the list in order, in one native call, on up to `threads` OS threads (default: all).

    Returns what the checking mode found; always empty for kernels compiled without `check`.
    """
    if not dispatches:
        return []
    checked = dispatches[0].kernel.check
    pool, threads = workers.pool(checked), threads or workers.default_threads()

    def start(some: Sequence[Dispatch]) -> None:
        pool.run(native.ffi.new("Dispatch *[]", [d.native for d in some]), len(some), threads)

    if not checked:
        start(dispatches)
        return []
    return [r for d in dispatches for r in check.observe(d, functools.partial(start, [d]))]
