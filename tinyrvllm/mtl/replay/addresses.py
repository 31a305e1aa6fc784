"""Buffers that a kernel finds through addresses in another one, an argument buffer."""

from .. import api
from ..api import declare, ffi
from ..buffer import Buffer
from ..command import Encoder

declare("MTLBuffer gpuAddress", "MTLComputeCommandEncoder useResources:count:usage:")


def gpu_address(buffer: Buffer) -> int:
    """Where kernels find a buffer (macOS 13). A dispatch that follows it needs `use`."""
    return buffer.objc.send.gpuAddress(buffer.handle)


def use(encoder: Encoder, *buffers: Buffer) -> None:
    """Later dispatches of an encoder may reach these by address, and write to them."""
    handles = ffi.new("id[]", [buffer.handle for buffer in buffers])
    usage = api.MTLResourceUsageRead | api.MTLResourceUsageWrite
    encoder.objc.send.useResources_count_usage_(encoder.handle, handles, len(handles), usage)
    encoder.commands.buffers.update(buffers)
