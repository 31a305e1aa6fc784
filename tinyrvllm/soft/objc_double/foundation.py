"""The few classes of Foundation that Metal's messages carry."""

from collections.abc import Sequence
from typing import Any

from .runtime import DoubleRuntime, ObjCObject, message
from .signatures import ffi


class NSString(ObjCObject):
    """Immutable text."""

    def __init__(self, runtime: DoubleRuntime, text: str = "") -> None:
        super().__init__(runtime)
        self.text = text
        self._utf8 = ffi.new("char[]", text.encode())

    @message("stringWithUTF8String:", class_method=True)
    def from_utf8(cls, runtime: DoubleRuntime, utf8: Any) -> ObjCObject:
        return cls(runtime, ffi.string(utf8).decode()).autorelease()  # type: ignore[operator]

    @message("UTF8String")
    def utf8(self) -> Any:
        return self._utf8

    @message("length")
    def length(self) -> int:
        return len(self.text.encode("utf-16-le")) // 2


class NSError(ObjCObject):
    """Why something failed."""

    def __init__(self, runtime: DoubleRuntime, text: str) -> None:
        super().__init__(runtime)
        self.text = text

    @message("localizedDescription")
    def description(self) -> ObjCObject:
        return NSString(self.runtime, self.text).autorelease()


class NSArray(ObjCObject):
    """A list of objects."""

    def __init__(self, runtime: DoubleRuntime, items: Sequence[ObjCObject] = ()) -> None:
        super().__init__(runtime)
        self._items = list(items)
        for item in items:
            self.hold(item)

    @message("count")
    def item_count(self) -> int:
        return len(self._items)

    @message("objectAtIndex:")
    def at(self, index: int) -> ObjCObject:
        return self._items[index]


class NSProcessInfo(ObjCObject):
    """Which macOS this is."""

    @message("processInfo", class_method=True)
    def process_info(cls, runtime: DoubleRuntime) -> ObjCObject:
        return cls(runtime).autorelease()  # type: ignore[operator]

    @message("operatingSystemVersion")
    def version(self) -> tuple[int, int, int]:
        return (*self.runtime.os_version, 0)


def warn(runtime: DoubleRuntime, error: Any) -> None:
    """Stores an NSError though all is well, as Metal may: only the result tells failure."""
    fail(runtime, error, "warnings only; the object was made")


def fail(runtime: DoubleRuntime, error: Any, text: str) -> None:
    """Stores an autoreleased NSError where the caller's NSError ** points; the result is nil."""
    if error:
        error[0] = NSError(runtime, text).autorelease().handle
