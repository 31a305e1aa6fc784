"""Guarded copies of a dispatch's buffers: where one buffer ends and the next one starts is seen.

Each bound range is copied into a window of address space of its own, with 16 GiB of nothing on
either side: more than a 32-bit index of four-byte elements reaches. So an overrun is seen even
where another buffer lies next in memory, and the slot at fault is known. Ranges that share bytes
(one buffer bound twice) share a copy. After the dispatch, what it wrote is copied back. A range of
more than `COPY_LIMIT` bytes is used in place: there only accesses outside *every* bound range are
seen.
"""

import ctypes
import mmap
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

COPY_LIMIT = 16 << 20
_WINDOW = 32 << 30
_WINDOWS = 32  # 31 slots, and one to reach beyond the last
_ALIGN = 64 << 10  # a copy is as far from a multiple of this as its original: vectors stay aligned
_PAGE = np.dtype([("lock", np.uint32), ("shift", np.uint32), ("cells", np.uint64)])  # shadow.h's
_PAGE_BYTES = 4096

Range = tuple[int, int]  # addresses, end exclusive


@dataclass(frozen=True, slots=True)
class Touched:
    """The bytes that a dispatch has really read and written, as sorted ranges of addresses."""

    reads: list[Range]
    writes: list[Range]


@dataclass(slots=True)
class Region:
    """Memory that some slots of one dispatch share."""

    low: int
    high: int
    slots: list[int]
    writable: bool
    moved: int = 0  # how far the guarded copy is from the original
    reads: np.ndarray = field(init=False)  # uint8 [bytes / 8 + 1]: bit i of byte j: byte 8 * j + i
    writes: np.ndarray = field(init=False)
    pages: np.ndarray = field(init=False)  # _PAGE [pages touched by the range]; none if read-only

    def __post_init__(self) -> None:
        size = self.high - self.low
        self.reads, self.writes = (np.zeros(size // 8 + 1, np.uint8) for _ in range(2))
        self.pages = np.zeros((size // _PAGE_BYTES + 2) * self.writable, _PAGE)


class Guard:
    """The memory of one dispatch while it runs. One at a time: the windows are the process's.

    `buffers`: slot -> (address, bytes from there to the end of the buffer); `writable`: slots
    through which the kernel may write; `resident`: ranges that it may reach through addresses
    stored in buffers: always used in place.
    """

    def __init__(
        self,
        buffers: Mapping[int, tuple[int, int]],
        writable: Iterable[int],
        resident: Iterable[Range] = (),
    ) -> None:
        self._buffers = buffers
        fixed = list(resident)
        self.regions = _merge(buffers, set(writable), fixed)
        windows = iter(range(_WINDOWS))
        for r in self.regions:
            reached = any(low < r.high and r.low < high for low, high in fixed)
            if not reached and r.high - r.low <= COPY_LIMIT:
                start = _window(next(windows), r.high - r.low + _ALIGN) + r.low % _ALIGN
                r.moved = start - r.low
                ctypes.memmove(start, r.low, r.high - r.low)

    def address(self, slot: int) -> int:
        """Where the kernel finds this slot's bytes."""
        moved = next((r.moved for r in self.regions if slot in r.slots), 0)
        return self._buffers[slot][0] + moved

    def size(self, slot: int) -> int:
        """Bytes bound at this slot."""
        return self._buffers[slot][1]

    def restore(self) -> None:
        """Copies back the span that the kernel has written in each region."""
        for r in self.regions:
            written = np.flatnonzero(r.writes) * 8
            if r.moved and written.size:
                low, high = r.low + int(written[0]), min(r.low + int(written[-1]) + 8, r.high)
                ctypes.memmove(low, low + r.moved, high - low)

    def locate(self, address: int) -> tuple[int, int] | None:
        """The slot that an address of the kernel belongs to or came from, and the byte in it."""
        for r in self.regions:
            inside = r.low <= address - r.moved < r.high
            in_window = r.moved and abs(address - r.moved - r.low) < _WINDOW // 2
            if r.slots and (inside or in_window):
                offsets = {slot: address - self.address(slot) for slot in r.slots}
                started = [slot for slot in r.slots if offsets[slot] >= 0] or r.slots
                slot = min(started, key=lambda s: abs(offsets[s]))
                return slot, offsets[slot]
        return None

    def touched(self) -> Touched:
        """What was really read and written."""
        reads = [x for r in self.regions for x in ranges(r.reads, r.low)]
        writes = [x for r in self.regions for x in ranges(r.writes, r.low)]
        return Touched(reads, writes)


def _merge(
    buffers: Mapping[int, tuple[int, int]], writable: set[int], resident: Iterable[Range]
) -> list[Region]:
    """Regions such that no two share a byte, in order of address."""
    bound = [(low, low + n, [slot], slot in writable) for slot, (low, n) in buffers.items() if n]
    reached: list[tuple[int, int, list[int], bool]] = [(*r, [], True) for r in resident]
    merged: list[tuple[int, int, list[int], bool]] = []
    for low, high, slots, writes in sorted(bound + reached, key=lambda r: r[:2]):
        if merged and low < merged[-1][1]:
            start, end, others, written = merged[-1]
            merged[-1] = (start, max(end, high), others + slots, writes or written)
        else:
            merged.append((low, high, slots, writes))
    return [Region(*r) for r in merged]


def ranges(bits: np.ndarray, start: int) -> list[Range]:
    """Runs of set bits (uint8, lowest bit first) as addresses from `start` on."""
    full = bits == 0xFF
    edges = np.flatnonzero(np.diff(full, prepend=False, append=False)).reshape(-1, 2) * 8
    mixed = np.flatnonzero((bits != 0) & ~full)
    single = np.unpackbits(bits[mixed], bitorder="little").reshape(-1, 8)
    ones = (mixed[:, None] * 8 + np.arange(8))[single == 1]
    runs = np.concatenate([edges, np.stack([ones, ones + 1], axis=1)])  # [runs, (first, end)]
    if not runs.size:
        return []
    runs = runs[np.argsort(runs[:, 0])]
    gap = np.flatnonzero(runs[1:, 0] != runs[:-1, 1])
    firsts, ends = runs[np.append(0, gap + 1), 0], runs[np.append(gap, -1), 1]
    return [(start + int(a), start + int(b)) for a, b in zip(firsts, ends, strict=True)]


class _Space:
    """One reservation of address space, made on first use; only what is touched costs memory."""

    base = 0
    memory: mmap.mmap | None = None


def _window(index: int, nbytes: int) -> int:
    """The address of nbytes of usable memory in the middle of a window."""
    _Space.base = _Space.base or _reserve(_WINDOWS * _WINDOW)
    start = _Space.base + index * _WINDOW + _WINDOW // 2
    if sys.platform == "win32":
        _virtual_alloc(start, nbytes, commit=True)
    return start


def _reserve(nbytes: int) -> int:
    if sys.platform == "win32":
        return _virtual_alloc(0, nbytes, commit=False)
    no_reserve = 0x40 if sys.platform == "darwin" else 0x4000  # MAP_NORESERVE: unnamed before 3.13
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    try:
        _Space.memory = mmap.mmap(-1, nbytes, flags=flags)
    except OSError as error:
        raise MemoryError(
            f"the checking mode needs {nbytes >> 40} TiB of address space (not of memory), and got "
            f"none: {error}; is there a limit on it (ulimit -v)?"
        ) from error
    return ctypes.addressof(ctypes.c_char.from_buffer(_Space.memory))


def _virtual_alloc(address: int, nbytes: int, commit: bool) -> int:
    """Windows: reserves address space, or makes a part of it usable."""
    call = ctypes.WinDLL("kernel32").VirtualAlloc  # type: ignore[attr-defined]
    call.restype = ctypes.c_void_p
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_uint32]
    mem_commit, mem_reserve, no_access, read_write = 0x1000, 0x2000, 0x01, 0x04
    how = (mem_commit, read_write) if commit else (mem_reserve, no_access)
    got: int | None = call(address, nbytes, *how)
    if not got:
        raise MemoryError(f"VirtualAlloc of {nbytes} bytes for the checking mode failed")
    return got
