"""Buffers that stay where the GPU reaches them, whatever is submitted."""

from collections.abc import Sequence

from ..api import MetalError, declare
from ..buffer import Buffer
from ..device import Device
from ..objc import Owned

declare(
    "MTLDevice newResidencySetWithDescriptor:error:",
    "MTLResidencySet addAllocation: commit requestResidency endResidency",
    "MTLCommandQueue addResidencySet: removeResidencySet:",
)


class ResidencySet(Owned):
    """Buffers that stay resident for every command buffer of the device (macOS 15)."""

    def __init__(self, device: Device, buffers: Sequence[Buffer]) -> None:
        if device.limits.os_version < (15, 0):
            raise MetalError("residency sets came with macOS 15; this system is older")
        objc, send, self._queue = device.objc, device.objc.send, device.queue
        with objc.pool(), objc.new("MTLResidencySetDescriptor") as descriptor:
            make = send.newResidencySetWithDescriptor_error_
            handle = objc.made("no residency set: ", make, device.handle, descriptor.handle)
        super().__init__(objc, handle)
        for buffer in buffers:
            send.addAllocation_(handle, buffer.handle)
        send.commit(handle)
        send.requestResidency(handle)
        send.addResidencySet_(self._queue.handle, handle)

    def close(self) -> None:
        """Lets the buffers go."""
        if not self.closed:
            if not self._queue.closed:  # a queue that is gone holds no set
                self.objc.send.removeResidencySet_(self._queue.handle, self.handle)
            self.objc.send.endResidency(self.handle)
        super().close()
