"""Memory that CPU and GPU share. On Apple silicon there is one memory: nothing is copied."""

from mmap import PAGESIZE
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .api import MetalError, MTLResourceStorageModeShared, declare, ffi
from .objc import Owned

if TYPE_CHECKING:
    from .command import Commands
    from .device import Device

declare(
    "MTLDevice newBufferWithLength:options: newBufferWithBytesNoCopy:length:options:deallocator:",
    "MTLBuffer contents",
    "MTLResource setLabel:",
)


class Buffer(Owned):
    """`nbytes` of shared memory. Made by `Device.buffer`, `Device.from_numpy`, `Device.wrap`."""

    def __init__(
        self, device: "Device", nbytes: int, label: str = "", wrapped: NDArray | None = None
    ) -> None:
        """Raises MetalError when the size is not in 1..max_buffer_length or memory is short."""
        self.in_flight: set[Commands] = set()  # that use it, were committed and not waited for
        if not 0 < nbytes <= device.limits.max_buffer_length:
            raise MetalError(
                f"buffer {label!r}: expected 1 to {device.limits.max_buffer_length} bytes "
                f"(this device's maxBufferLength), found {nbytes}"
            )
        device.buffers_made += 1
        self.nbytes = nbytes
        self.wrapped = wrapped  # a memory map must stay mapped as long as the GPU may read it
        objc, send, shared = device.objc, device.objc.send, MTLResourceStorageModeShared
        with objc.pool():
            if wrapped is None:
                handle = send.newBufferWithLength_options_(device.handle, nbytes, shared)
            else:
                start = ffi.cast("void *", wrapped.ctypes.data)
                length = -(-nbytes // PAGESIZE) * PAGESIZE  # Metal wants whole pages
                handle = send.newBufferWithBytesNoCopy_length_options_deallocator_(
                    device.handle, start, length, shared, ffi.NULL
                )
            if not handle:
                raise MetalError(f"buffer {label!r}: Metal has no room for {nbytes} bytes")
            super().__init__(objc, handle, label)
            if label:
                send.setLabel_(handle, objc.string(label))

    def numpy(
        self, dtype: DTypeLike = np.uint8, shape: tuple[int, ...] | None = None, offset: int = 0
    ) -> NDArray:
        """The memory itself as an array, from `offset` bytes on: writing to it writes the buffer.

        Without a shape: one dimension, as long as the buffer allows. Raises MetalError between
        commit and wait, when the GPU may be writing what you would read.
        """
        self._must_be_idle()
        dtype = np.dtype(dtype)
        shape = ((self.nbytes - offset) // dtype.itemsize,) if shape is None else shape
        try:
            if offset < 0:  # there np.ndarray would show what lies before the buffer
                raise ValueError(offset)
            return np.ndarray(shape, dtype, np.asarray(Memory(self)), offset)
        except (TypeError, ValueError):  # numpy's words for what does not fit
            raise MetalError(
                f"buffer {self.label!r}: expected a view inside its {self.nbytes} bytes, found "
                f"{dtype} {shape} from byte {offset}"
            ) from None

    def _must_be_idle(self) -> None:
        if self.in_flight:
            raise MetalError(
                f"buffer {self.label!r} is in use by {len(self.in_flight)} committed command "
                "buffer(s); wait for them before you look at it or close it"
            )

    def close(self) -> None:
        """Gives the memory back: at once, or with the last numpy view of it.

        Raises MetalError between commit and wait: the GPU may be using it.
        """
        self._must_be_idle()
        super().close()
        self.wrapped = None

    def __del__(self) -> None:
        super().close()  # of work that nobody waits for: Metal keeps what it still uses


class Memory(Owned):
    """What numpy holds on to: an owner of its own, so that a view outlives a closed buffer."""

    def __init__(self, buffer: Buffer) -> None:
        objc, handle = buffer.objc, buffer.handle
        super().__init__(objc, objc.send.retain(handle), buffer.label)
        self.wrapped = buffer.wrapped
        address = int(ffi.cast("uintptr_t", objc.send.contents(handle)))
        read_only = self.wrapped is not None and not self.wrapped.flags.writeable
        self.__array_interface__ = {
            "version": 3, "shape": (buffer.nbytes,), "typestr": "|u1", "data": (address, read_only),
        }  # fmt: skip
