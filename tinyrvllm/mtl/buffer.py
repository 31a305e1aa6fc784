"""Memory that CPU and GPU share. On Apple silicon there is one memory: nothing is copied."""

from mmap import PAGESIZE
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .api import MetalError, MTLResourceStorageModeShared, declare, ffi
from .objc import Handle, ObjC, Owned

if TYPE_CHECKING:
    from .device import Device

MESSAGES = declare(
    with_length="MTLDevice newBufferWithLength:options:",
    with_memory="MTLDevice newBufferWithBytesNoCopy:length:options:deallocator:",
    contents="MTLBuffer contents",
    gpu_address="MTLBuffer gpuAddress",
    set_label="MTLResource setLabel:",
)


class _Memory(Owned):
    """The MTLBuffer itself. Numpy views hold it, so it outlives a closed Buffer that has some."""

    def __init__(
        self, objc: ObjC, handle: Handle, nbytes: int, wrapped: NDArray | None
    ) -> None:
        super().__init__(objc, handle)
        self.nbytes = nbytes
        self.wrapped = wrapped  # a memory map must stay mapped as long as the GPU may read it
        self._contents = objc.messages(MESSAGES).contents

    @property
    def __array_interface__(self) -> dict[str, object]:
        """Asks for the contents each time: a device with two memories then knows when it must copy."""
        address = int(ffi.cast("uintptr_t", self._contents(self.handle)))
        read_only = self.wrapped is not None and not self.wrapped.flags.writeable
        return {
            "version": 3, "shape": (self.nbytes,), "typestr": "|u1", "data": (address, read_only),
        }  # fmt: skip


class Buffer:
    """`nbytes` of shared memory. Made by `Device.buffer`, `Device.from_numpy`, `Device.wrap`."""

    def __init__(
        self, device: "Device", nbytes: int, label: str = "", wrapped: NDArray | None = None
    ) -> None:
        """Raises MetalError when the size is not in 1..max_buffer_length or memory is short."""
        if not 0 < nbytes <= device.limits.max_buffer_length:
            raise MetalError(
                f"buffer {label!r}: expected 1 to {device.limits.max_buffer_length} bytes "
                f"(this device's maxBufferLength), found {nbytes}"
            )
        device.buffers_made += 1
        self.nbytes = nbytes
        self.label = label
        self.in_flight = 0  # committed command buffers that use it and were not waited for
        objc, send = device.objc, device.objc.messages(MESSAGES)
        self._send = send
        shared = MTLResourceStorageModeShared
        with objc.pool():
            if wrapped is None:
                handle = send.with_length(device.handle, nbytes, shared)
            else:
                start = ffi.cast("void *", wrapped.ctypes.data)
                length = -(-nbytes // PAGESIZE) * PAGESIZE  # Metal wants whole pages
                handle = send.with_memory(device.handle, start, length, shared, ffi.NULL)
            if not handle:
                raise MetalError(f"buffer {label!r}: Metal has no room for {nbytes} bytes")
            self._memory: _Memory | None = _Memory(objc, handle, nbytes, wrapped)
            if label:
                send.set_label(handle, objc.string(label))

    @property
    def handle(self) -> Handle:
        """The MTLBuffer. Raises MetalError after close()."""
        if self._memory is None:
            raise MetalError(f"buffer {self.label!r} is closed and cannot be used")
        return self._memory.handle

    @property
    def gpu_address(self) -> int:
        """Where kernels find it (macOS 13): to be stored in another buffer, an argument buffer.

        A dispatch whose kernel follows it needs `Encoder.use`.
        """
        return self._send.gpu_address(self.handle)

    def numpy(
        self, dtype: DTypeLike = np.uint8, shape: tuple[int, ...] | None = None, offset: int = 0
    ) -> NDArray:
        """The memory itself as an array, from `offset` bytes on: writing to it writes the buffer.

        Without a shape: one dimension, as long as the buffer allows. Raises MetalError between
        commit and wait, when the GPU may be writing what you would read.
        """
        self._must_be_idle()
        if self._memory is None:
            raise MetalError(f"buffer {self.label!r} is closed and cannot be used")
        dtype = np.dtype(dtype)
        count = (self.nbytes - offset) // dtype.itemsize if shape is None else int(np.prod(shape))
        if offset < 0 or count < 0 or offset + count * dtype.itemsize > self.nbytes:
            raise MetalError(
                f"buffer {self.label!r}: expected a view inside its {self.nbytes} bytes, found "
                f"{count} x {dtype} from byte {offset}"
            )
        memory = np.asarray(self._memory)[offset : offset + count * dtype.itemsize]
        return memory.view(dtype).reshape(shape if shape is not None else (count,))

    def _must_be_idle(self) -> None:
        if self.in_flight:
            raise MetalError(
                f"buffer {self.label!r} is in use by {self.in_flight} committed command "
                "buffer(s); wait for them before you look at it or close it"
            )

    def close(self) -> None:
        """Gives the memory back: at once, or with the last numpy view of it.

        Raises MetalError between commit and wait: the GPU may be using it.
        """
        self._must_be_idle()
        self._memory = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
