"""The C function behind a message: called through cffi, or with the interpreter's lock kept.

cffi gives the lock up for each call. Beside a thread that computes in Python, some of the 900 sends
of a step then waited 5 ms to get it back (`sys.getswitchinterval`). ctypes can keep it, for what only
notes something down. cffi makes the values all the same, and so checks them.
"""

import ctypes
from collections.abc import Callable
from typing import Any

from .api import C_TYPES, c_type, ffi

# What a step sends, but for what may wait: for a free command buffer, for room, for the GPU.
QUICK = {
    "retain", "release", "stringWithUTF8String:", "setLabel:", "contents", "status", "GPUStartTime",
    "GPUEndTime", "computeCommandEncoderWithDispatchType:", "setComputePipelineState:",
    "setBuffers:offsets:withRange:", "dispatchThreadgroups:threadsPerThreadgroup:",
    "memoryBarrierWithScope:", "useResources:count:usage:", "executeCommandsInBuffer:withRange:",
    "endEncoding",
}  # fmt: skip


class _Range(ctypes.Structure):
    _fields_ = [("location", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class _Size(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("width", "height", "depth")]


CTYPES: dict[str, Any] = {"Q": ctypes.c_uint64, "d": ctypes.c_double, "{QQ}": _Range, "{QQQ}": _Size}
CTYPES |= dict.fromkeys(("@", "*", "^v", "^@", "^Q"), ctypes.c_void_p)
_CELLS = {letter: ffi.typeof(f"{C_TYPES[letter]} *") for letter in CTYPES}


def in_c(letter: str, value: Any) -> Any:
    """A value as ctypes passes it, by its @encode letter.

    Raises TypeError or OverflowError for what the type cannot hold.
    """
    return CTYPES[letter].from_buffer_copy(ffi.buffer(ffi.new(_CELLS[letter], value)))


def quick(function: Any, returns: str) -> Callable[..., Any]:
    """A C function that is called with values from `in_c`, and keeps the lock."""
    return ctypes.PYFUNCTYPE(CTYPES.get(returns))(in_c("^v", function).value)


def bind(
    function: Any, name: Any, selector: str, returns: str, arguments: tuple[str, ...]
) -> Callable[..., Any]:
    """`send(receiver, *arguments)`, which calls objc_msgSend as this method's C function.

    A quick one has the two things that replay/recording.py calls it with, as `send.native`.
    """
    if selector not in QUICK:
        method = ffi.cast(c_type(returns, arguments), function)
        return lambda receiver, *values: method(receiver, name, *values)
    call, name = quick(function, returns), in_c("^v", name)

    def send(receiver: Any, *values: Any) -> Any:
        result = call(in_c("@", receiver), name, *map(in_c, arguments, values))
        return ffi.cast("id", result or 0) if CTYPES.get(returns) is ctypes.c_void_p else result

    send.native = call, name  # type: ignore[attr-defined]
    return send
