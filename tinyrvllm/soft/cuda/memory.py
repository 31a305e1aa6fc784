"""Buffers on two sides: Metal's shared memory, on a machine that has two memories.

A buffer lives on the card. What the host sees is a mirror, kept so that the program cannot tell:

| buffer | host to card | card to host |
|---|---|---|
| whose contents nobody has asked for | never: it starts as zeros on both sides | never |
| up to SMALL bytes | what differs from the last copy, at each commit | at each wait, if a kernel may have written it |
| larger | whole, at the first commit after its contents were asked for | when its contents are asked for |

So a kept pointer into a large buffer must be asked for again (`Buffer.numpy` does) before it is
written or read anew; small ones, and what a program only reads through the GPU, need no care.
Memory that the program brought (newBufferWithBytesNoCopy) counts as asked for once, when wrapped.
"""

import bisect
import threading
import weakref
from collections import deque
from typing import Any

import numpy as np

from tinyrvllm.soft.cuda.driver import Card

SMALL = 1 << 20  # bytes
PADDING = 16  # bytes behind a buffer that load_packed of include/vec.h may look at
BLOCK = 256  # bytes that are compared and copied at a time


class TwoSided:
    """One buffer: `host` is the mirror's address, the card's memory comes with its first use."""

    def __init__(self, card: Card, host: int, nbytes: int, owner: Any, shown: bool) -> None:
        self.card, self.host, self.nbytes = card, host, nbytes
        self.owner = owner  # of the mirror
        self.shown = shown  # whether the host has the mirror's address
        self.host_newer = shown
        self.card_newer = False
        self._device = 0
        self._copied: np.ndarray | None = None  # small: the mirror as it was when last copied

    @property
    def small(self) -> bool:
        return self.nbytes <= SMALL

    @property
    def device(self) -> int:
        if not self._device:
            padded = -(-self.nbytes // BLOCK) * BLOCK + PADDING
            self._device = self.card.allocate(padded)
            weakref.finalize(self, _free, self.card, self._device)
        return self._device

    def mirror(self) -> np.ndarray:
        return view(self.host, self.nbytes)

    def show(self) -> None:
        """The host asks for its contents: to read them, to write them, or both."""
        with self.card.lock:
            self.card.enter()
            self.shown = self.host_newer = True
            if self.card_newer:
                self.card.download(self.host, self.device, self.nbytes)
                self.card.wait()
                self.card_newer = False
                if self.small:
                    self._copied = self.mirror().copy()

    def upload(self) -> None:
        """Before work: the card gets what the host wrote."""
        if not self.shown:
            return
        if not self.small:
            if self.host_newer:
                self.card.upload_much(self.device, self.mirror())
                self.host_newer = False
            return
        mirror = self.mirror()
        if self._copied is None:
            self._copied = np.zeros(self.nbytes, np.uint8)
        first, last = _difference(mirror, self._copied)
        if first < last:
            self.card.upload(self.device + first, self.host + first, last - first)
            self._copied[first:last] = mirror[first:last]

    def receive(self, staged: np.ndarray) -> None:
        """After work: the mirror gets what the kernels wrote."""
        self.mirror()[:] = staged
        self._copied = staged.copy()


def view(address: int, nbytes: int) -> np.ndarray:
    interface = {"version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (address, False)}
    return np.asarray(type("Memory", (), {"__array_interface__": interface})())


def _difference(a: np.ndarray, b: np.ndarray) -> tuple[int, int]:
    """The range of blocks in which two arrays differ; empty where they are equal."""
    whole = len(a) // 8 * 8
    unequal = a[:whole].view(np.uint64) != b[:whole].view(np.uint64)
    first, last = len(a), 0
    if unequal.any():
        places = np.flatnonzero(unequal)
        first, last = int(places[0]) * 8, int(places[-1]) * 8 + 8
    if not np.array_equal(a[whole:], b[whole:]):
        first, last = min(first, whole), len(a)
    return first, last


def _free(card: Card, address: int) -> None:
    card.free(address)


class Buffers:
    """All buffers, found by the host's addresses."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._starts: list[int] = []
        self._buffers: list[weakref.ref[TwoSided]] = []
        self._dead: deque[weakref.ref[TwoSided]] = deque()  # by the collector, at any moment

    def add(self, buffer: TwoSided) -> None:
        reference = weakref.ref(buffer, self._dead.append)
        with self._lock:
            while self._dead:
                at = self._buffers.index(self._dead.popleft())
                del self._buffers[at], self._starts[at]
            # Behind one that began there before and is not collected yet: the newest is found first.
            at = bisect.bisect_right(self._starts, buffer.host)
            self._starts.insert(at, buffer.host)
            self._buffers.insert(at, reference)

    def at(self, address: int, nbytes: int) -> TwoSided:
        """The buffer that these bytes are in: of views that overlap, one that ends with them."""
        inside = None
        with self._lock:
            after = bisect.bisect_right(self._starts, address)
            for reference in reversed(self._buffers[:after]):
                buffer = reference()
                if buffer is None:
                    continue
                behind = buffer.host + buffer.nbytes - address - nbytes
                if behind == 0:
                    return buffer
                if behind > 0 and inside is None:
                    inside = buffer
                    if buffer.small:
                        break
        if inside is None:
            raise KeyError(f"no buffer has the {nbytes} bytes at {address:#x}")
        return inside
