"""The Objective-C runtime through cffi: messages, strings, errors, autorelease pools, ownership.

A runtime is five operations (see `Runtime`). `runtime(name)` chooses between Apple's and the
double of `tinyrvllm.soft`; no other line of this program knows which one answers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, Self

from .api import MetalError, declare, declared, ffi

declare(
    "NSObject new retain release",
    "NSString stringWithUTF8String: UTF8String",
    "NSError localizedDescription",
)
Handle = Any  # an Objective-C object: a `void *` of cffi, which has no type stubs
Send = Callable[..., Any]  # send(receiver, *arguments); one to nil does nothing and returns 0


class Runtime(Protocol):
    """What the bridge needs from an Objective-C runtime that has Metal in it."""

    unverified: list[str]  # messages whose types the system does not publish: taken on trust

    def class_named(self, name: str) -> Handle: ...
    def bind(self, selector: str, returns: str, arguments: tuple[str, ...]) -> Send: ...
    def push_pool(self) -> Any: ...
    def pop_pool(self, pool: Any) -> None: ...
    def default_device(self) -> Handle:
        """An MTLDevice that the caller owns. Raises MetalError when the machine has none."""


def runtime(name: str) -> Runtime:
    """The runtime behind a device name: "metal" is Apple's, any other is the double's.

    Raises MetalError, which says why, when this machine cannot have that device.
    """
    if name == "metal":
        from .apple import AppleRuntime

        return AppleRuntime()
    from tinyrvllm.soft import objc_double

    try:
        return objc_double.runtime(name)
    except objc_double.Unavailable as reason:
        raise MetalError(str(reason)) from None


class Messages:
    """`setBuffer_offset_atIndex_(receiver, ...)`: each declared selector, with _ for its colons."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def __getattr__(self, name: str) -> Send:
        """Binds what is sent for the first time; from then on it is an attribute."""
        if name not in declared:
            raise AttributeError(f"no module declares a message {name}; see mtl/api.py")
        method = declared[name]
        send = self._runtime.bind(method.selector, method.returns, method.arguments)
        setattr(self, name, send)
        return send


class ObjC:
    """A runtime, what can be sent to its objects, and what every object needs."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.send = Messages(runtime)

    @contextmanager
    def pool(self) -> Iterator[None]:
        """Objects autoreleased inside are released at the end; retain what shall live longer."""
        pool = self.runtime.push_pool()
        try:
            yield
        finally:
            self.runtime.pop_pool(pool)

    def string(self, text: str) -> Handle:
        """An autoreleased NSString."""
        utf8 = ffi.new("char[]", text.encode())
        return self.send.stringWithUTF8String_(self.runtime.class_named("NSString"), utf8)

    def text(self, string: Handle) -> str:
        """The text of an NSString."""
        return ffi.string(self.send.UTF8String(string)).decode()

    def error(self, error: Handle) -> str:
        """Metal's own words for an NSError."""
        nil = "Metal gave no reason (nil NSError)"
        return self.text(self.send.localizedDescription(error)) if error else nil

    def new(self, class_name: str) -> "Owned":
        """A new object of a class."""
        return Owned(self, self.send.new(self.runtime.class_named(class_name)), class_name)

    def made(self, failure: str, send: Send, *arguments: Any) -> Handle:
        """What a message makes whose last argument is `error:`; owned by the caller.

        Raises MetalError, `failure` and Metal's words, for nil; an error with an object is a warning.
        """
        error = ffi.new("id *")
        if handle := send(*arguments, error):
            return handle
        raise MetalError(failure + self.error(error[0]))


class Owned:
    """An object that this program owns: released by close(), by `with`, or when collected."""

    label = ""
    _handle: Handle = None

    def __init__(self, objc: ObjC, handle: Handle, label: str = "") -> None:
        self.objc, self.label = objc, label
        if not handle:
            raise MetalError(f"expected a {type(self).__name__} {label!r}, Metal gave nil")
        self._handle = handle

    @property
    def handle(self) -> Handle:
        """The Objective-C object. Raises MetalError after close()."""
        if self.closed:
            raise MetalError(f"{type(self).__name__} {self.label!r} is closed and cannot be used")
        return self._handle

    @property
    def closed(self) -> bool:
        return self._handle is None

    def close(self) -> None:
        """Gives the object back; once is enough."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self.objc.send.release(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
