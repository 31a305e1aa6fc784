"""Guarded copies of a dispatch's buffers, so that the checking mode can tell one buffer's end from the next one's start.

Each bound range is copied into a window of address space of its own, with 16 GiB of nothing on either side: more than a
32-bit index of four-byte elements reaches. So an overrun is seen even where another buffer lies next in memory, and the
slot at fault is known. Ranges that share bytes (one buffer bound twice) share a copy. After the dispatch what the kernel
may write is copied back. A range of more than `COPY_LIMIT` bytes is used in place: there only accesses outside
*every* bound range are seen.
"""

import ctypes
import mmap
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

COPY_LIMIT = 64 << 20
_WINDOW = 32 << 30
_WINDOWS = 32  # 31 slots, and one to reach beyond the last
_ALIGN = 64 << 10

_PAGE = np.dtype([("lock", np.uint32), ("shift", np.uint32), ("cells", np.uint64)])

Range = tuple[int, int]  # addresses, end exclusive


@dataclass
class Touched:
    """The bytes that a dispatch has really read and written, as sorted ranges of host addresses."""

    reads: list[Range]
    writes: list[Range]


@dataclass
class Region:
    """Memory that some slots of one dispatch share."""

    low: int
    high: int
    slots: list[int]
    writable: bool
    moved: int = 0  # how far the guarded copy is from the original
    reads: np.ndarray = field(
        init=False
    )  # uint8 [ceil(bytes / 8)]: bit i of byte j: byte 8 * j + i was read
    writes: np.ndarray = field(init=False)
    pages: np.ndarray = field(
        init=False
    )  # shadow.h's Page [pages touched by the range], empty if never written

    def __post_init__(self) -> None:
        size = self.high - self.low
        self.reads, self.writes = (np.zeros(size // 8 + 1, np.uint8) for _ in range(2))
        self.pages = np.zeros((size // 4096 + 2) * self.writable, _PAGE)


class _Space:
    """One reservation of address space for the whole process; only what is touched costs memory."""

    base: int | None = None

    @classmethod
    def window(cls, index: int, nbytes: int) -> int:
        """The address of nbytes of usable memory in the middle of a window."""
        if cls.base is None:
            cls.base = _reserve(_WINDOWS * _WINDOW)
        start = cls.base + index * _WINDOW + _WINDOW // 2
        if sys.platform == "win32":
            _virtual_alloc(start, nbytes, _MEM_COMMIT, _PAGE_READWRITE)
        return start


_MEM_COMMIT, _MEM_RESERVE, _PAGE_NOACCESS, _PAGE_READWRITE = 0x1000, 0x2000, 0x01, 0x04


def _virtual_alloc(address: int, nbytes: int, how: int, protection: int) -> int:
    call = ctypes.windll.kernel32.VirtualAlloc  # type: ignore[attr-defined]
    call.restype, call.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_uint32],
    )
    got = call(address, nbytes, how, protection)
    if not got:
        raise MemoryError(f"VirtualAlloc of {nbytes} bytes for the checking mode failed")
    return got


def _reserve(nbytes: int) -> int:
    if sys.platform == "win32":
        return _virtual_alloc(0, nbytes, _MEM_RESERVE, _PAGE_NOACCESS)
    no_reserve = (
        0x40 if sys.platform == "darwin" else 0x4000
    )  # MAP_NORESERVE; Python 3.13 is the first to name it
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    try:
        space = mmap.mmap(-1, nbytes, flags=flags)
    except OSError as error:
        raise MemoryError(
            f"the checking mode needs {nbytes >> 40} TiB of address space (not memory) to keep buffers apart: {error}; "
            "is there a limit on it (ulimit -v)?"
        ) from error
    _reserve.space = space  # type: ignore[attr-defined]  # never unmapped
    return ctypes.addressof(ctypes.c_char.from_buffer(space))


class Guard:
    """The memory of one dispatch while it runs.

    `buffers`: slot -> (address, bytes from there to the end of the buffer); `writable`: slots through which the kernel
    may write; `resident`: ranges that it may reach through addresses stored in buffers: always used in place.
    """

    def __init__(
        self,
        buffers: Mapping[int, tuple[int, int]],
        writable: Iterable[int],
        resident: Iterable[Range] = (),
    ):
        self._buffers = buffers
        fixed = list(resident)
        self.regions = _merge(buffers, set(writable), fixed)
        for i, region in enumerate(self.regions):
            size = region.high - region.low
            in_place = size > COPY_LIMIT or any(
                low < region.high and region.low < high for low, high in fixed
            )
            if not in_place:
                start = _Space.window(i, size + _ALIGN) + region.low % _ALIGN
                region.moved = start - region.low
                ctypes.memmove(start, region.low, size)

    def address(self, slot: int) -> int:
        """Where the kernel finds this slot's bytes."""
        address = self._buffers[slot][0]
        return address + next((r.moved for r in self.regions if slot in r.slots), 0)

    def size(self, slot: int) -> int:
        """Bytes bound at this slot."""
        return self._buffers[slot][1]

    def restore(self) -> None:
        """Copies back what the kernel may have written."""
        for r in self.regions:
            if r.writable and r.moved:
                ctypes.memmove(r.low, r.low + r.moved, r.high - r.low)

    def locate(self, address: int) -> tuple[int, int] | None:
        """The slot that a kernel's address belongs to, or the nearest one's, and the byte offset from its start."""
        for r in self.regions:
            inside = r.low <= address - r.moved < r.high
            in_window = r.moved and abs(address - r.moved - r.low) < _WINDOW // 2
            if r.slots and (inside or in_window):
                offsets = {slot: address - self.address(slot) for slot in r.slots}
                below = [slot for slot in r.slots if offsets[slot] >= 0] or r.slots
                slot = min(below, key=lambda s: abs(offsets[s]))
                return slot, offsets[slot]
        return None

    def touched(self) -> Touched:
        """What was really read and written."""
        reads = [r for region in self.regions for r in _ranges(region.reads, region.low)]
        writes = [r for region in self.regions for r in _ranges(region.writes, region.low)]
        return Touched(reads, writes)


def _merge(
    buffers: Mapping[int, tuple[int, int]], writable: set[int], resident: Iterable[Range]
) -> list[Region]:
    """Regions such that no two share a byte, in order of address."""
    ranges = [
        (low, low + size, [slot], slot in writable) for slot, (low, size) in buffers.items() if size
    ]
    ranges += [(low, high, [], True) for low, high in resident]
    merged: list[tuple[int, int, list[int], bool]] = []
    for low, high, slots, writes in sorted(ranges, key=lambda r: r[:2]):
        if merged and low < merged[-1][1]:
            before = merged[-1]
            merged[-1] = (before[0], max(before[1], high), before[2] + slots, before[3] or writes)
        else:
            merged.append((low, high, slots, writes))
    return [Region(*r) for r in merged]


def _ranges(bits: np.ndarray, start: int) -> list[Range]:
    """Runs of set bits as addresses."""
    if not bits.any():
        return []
    set_ = np.unpackbits(bits, bitorder="little")
    edges = np.flatnonzero(np.diff(set_, prepend=0, append=0)).reshape(
        -1, 2
    )  # [runs, (first, end)]
    return [(start + int(a), start + int(b)) for a, b in edges]
