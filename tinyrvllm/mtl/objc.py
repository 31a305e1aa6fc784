"""The Objective-C runtime through cffi: messages, strings, errors, autorelease pools, ownership.

A runtime is five operations (see `Runtime`). `runtime(name)` chooses between Apple's and the
double of `tinyrvllm.soft`; no other line of this program knows which one answers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Protocol, Self

from .api import MetalError, Method, declare, ffi

Handle = Any  # an Objective-C object: a `void *` of cffi, which has no type stubs

MESSAGES = declare(
    new="NSObject new",
    retain="NSObject retain",
    release="NSObject release",
    string="NSString stringWithUTF8String:",
    utf8="NSString UTF8String",
    error_text="NSError localizedDescription",
    process_info="NSProcessInfo processInfo",
    os_version="NSProcessInfo operatingSystemVersion",
)


class Runtime(Protocol):
    """What the bridge needs from an Objective-C runtime that has Metal in it."""

    name: str  # the device's name on our command lines: "metal", "soft", "soft:check", ...

    @property
    def unverified(self) -> list[str]:
        """Messages whose types could not be compared with what the system publishes."""

    def class_named(self, name: str) -> Handle: ...

    def bind(self, selector: str, returns: str, arguments: tuple[str, ...]) -> Callable[..., Any]:
        """A callable `send(receiver, *arguments)`. A message to nil does nothing, returns 0."""

    def push_pool(self) -> Any: ...

    def pop_pool(self, pool: Any) -> None: ...

    def default_device(self) -> Handle:
        """An MTLDevice that the caller owns. Raises when the machine has none."""


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


class ObjC:
    """A runtime with the messages that every object needs."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._sends: dict[tuple[str, str, tuple[str, ...]], Callable[..., Any]] = {}
        self.send = self.messages(MESSAGES)

    def messages(self, methods: dict[str, Method]) -> SimpleNamespace:
        """What `declare` returned -> an object with one `send` function for each name."""
        sends = {}
        for name, method in methods.items():
            signature = (method.selector, method.returns, method.arguments)
            if signature not in self._sends:
                self._sends[signature] = self.runtime.bind(*signature)
            sends[name] = self._sends[signature]
        return SimpleNamespace(**sends)

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
        return self.send.string(self.runtime.class_named("NSString"), utf8)

    def text(self, string: Handle) -> str:
        """The text of an NSString; empty for nil."""
        return ffi.string(self.send.utf8(string)).decode() if string else ""

    def error(self, error: Handle) -> str:
        """Metal's own words for an NSError."""
        if not error:
            return "Metal gave no reason (nil NSError)"
        return self.text(self.send.error_text(error))

    def new(self, class_name: str) -> Handle:
        """An object of a class, owned by the caller."""
        cls = self.runtime.class_named(class_name)
        if not cls:
            raise MetalError(f"this system has no class {class_name}; update macOS")
        return self.send.new(cls)

    @property
    def os_version(self) -> tuple[int, int]:
        """The macOS version, which decides what may be sent."""
        with self.pool():
            info = self.send.process_info(self.runtime.class_named("NSProcessInfo"))
            version = self.send.os_version(info)
            return version.major, version.minor


class Owned:
    """An object that this program owns: released by close(), by `with`, or when collected."""

    label = ""

    def __init__(self, objc: ObjC, handle: Handle) -> None:
        if not handle:
            raise MetalError(f"expected an object for a {type(self).__name__}, Metal gave nil")
        self.objc = objc
        self._handle = handle

    @property
    def handle(self) -> Handle:
        """The Objective-C object. Raises MetalError after close()."""
        if self._handle is None:
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
        if getattr(self, "_handle", None) is not None:
            self.close()
