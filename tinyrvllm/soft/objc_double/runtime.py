"""An Objective-C runtime in Python: handles, retain counts, autorelease pools, zombies.

An object is known to the program by a handle, a number that is never used twice: a message to a
freed object finds a zombie that says what it was. Rules that a Mac enforces with an abort, a crash
or a silent wrong answer raise ObjCError here, with what was done and what to do instead.
"""

import difflib
import itertools
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from .signatures import ObjCError, ffi, signatures

ZOMBIES = 10_000  # freed objects whose names are kept
PACKAGE = str(Path(__file__).parents[2])  # code above it in the stack is the program's own
ID, ADDRESS = ffi.typeof("id"), ffi.typeof("uintptr_t")
Handler = TypeVar("Handler", bound=Callable[..., Any])


def message(selector: str, class_method: bool = False) -> Callable[[Handler], Handler]:
    """Marks a Python method as the answer to a selector."""

    def mark(function: Handler) -> Handler:
        function.selector = selector  # type: ignore[attr-defined]
        return function if not class_method else classmethod(function)  # type: ignore[return-value]

    return mark


class ObjCObject:
    """Base of the double's classes. A subclass says which owners of the API table it implements."""

    owners: ClassVar[tuple[str, ...]] = ()
    instance_messages: ClassVar[dict[str, str]] = {}  # selector -> Python method
    class_messages: ClassVar[dict[str, str]] = {}
    label = ""

    def __init_subclass__(cls) -> None:
        cls.owners = (*cls.__dict__.get("owners", (cls.__name__,)), "NSObject")
        cls.instance_messages, cls.class_messages = {}, {}
        for name in dir(cls):
            value = getattr(cls, name)
            selector = getattr(value, "selector", None)
            if selector is None:
                continue
            if not set(signatures()[selector].owners) & set(cls.owners):
                raise ObjCError(f"{cls.__name__} answers {selector}, which is not its message")
            table = cls.class_messages if hasattr(value, "__self__") else cls.instance_messages
            table[selector] = name

    def __init__(self, runtime: "DoubleRuntime") -> None:
        self.runtime = runtime
        self.retain_count = 1
        self.site = caller()
        self._held: list[ObjCObject] = []
        self.handle = runtime.register(self)

    def __str__(self) -> str:
        return type(self).__name__ + (f" {self.label!r}" if self.label else "")

    def hold(self, other: "ObjCObject") -> None:
        """Keeps another object alive as long as this one."""
        other.retain()
        self._held.append(other)

    def let_go(self, other: "ObjCObject") -> None:
        """Undoes `hold`."""
        self._held.remove(other)
        other.release()

    def dealloc(self) -> None:
        """Runs when the last owner lets go."""

    @message("new", class_method=True)
    def new(cls, runtime: "DoubleRuntime") -> "ObjCObject":
        return cls(runtime)  # type: ignore[operator]

    @message("retain")
    def retain(self) -> "ObjCObject":
        with self.runtime.lock:
            self.retain_count += 1
        return self

    @message("release")
    def release(self) -> None:
        with self.runtime.lock:
            self.retain_count -= 1
            last = self.retain_count == 0
        if last:
            self.runtime.bury(self)
            held, self._held = self._held, []
            try:
                self.dealloc()
            except ObjCError as fault:  # a Python destructor up the stack may swallow it
                self.runtime.faults.append(str(fault))
                raise
            finally:
                for other in held:
                    other.release()

    @message("retainCount")
    def count(self) -> int:
        return self.retain_count

    def autorelease(self) -> "ObjCObject":
        """Released when the innermost pool of this thread ends."""
        pools = self.runtime.pools
        if not pools:
            raise ObjCError(
                f"{self} autoreleased with no pool in place: it would never be freed. Open an "
                "autorelease pool on this thread before the message"
            )
        pools[-1].append(self)
        return self


def caller() -> str:
    """file:line of the program that caused the message: the first frame outside tinyrvllm."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class DoubleRuntime:
    """The five operations of a runtime (tinyrvllm.mtl.objc.Runtime) over the double's classes."""

    def __init__(self, name: str, classes: dict[str, type[ObjCObject]]) -> None:
        self.name = name
        self.classes = classes
        self.os_version = (15, 0)  # macOS: newer messages are refused
        self.unverified: list[str] = []  # none: `bind` compares every message
        self.lock = threading.RLock()
        self.faults: list[str] = []  # rules broken while an object was freed
        self._objects: dict[int, ObjCObject] = {}
        self._zombies: OrderedDict[int, str] = OrderedDict()
        self._handles = itertools.count(0x7F0000001000, 16)
        self._class_handles = {name: next(self._handles) for name in classes}
        self._class_of_handle = {handle: name for name, handle in self._class_handles.items()}
        self._local = threading.local()
        self._allowed: set[tuple[type[ObjCObject], str]] = set()  # messages old enough for it

    # ---- the five operations

    def class_named(self, name: str) -> Any:
        """The class object, or nil."""
        return ffi.cast("id", self._class_handles.get(name, 0))

    def bind(self, selector: str, returns: str, arguments: tuple[str, ...]) -> Callable[..., Any]:
        """`send(receiver, *arguments)`. Raises ObjCError when the caller's types are wrong."""
        signature = signatures().get(selector)
        if signature is None:
            near = difflib.get_close_matches(selector, signatures(), n=3)
            raise ObjCError(f"unrecognized selector {selector}; nearest: {', '.join(near)}")
        if (signature.returns, signature.arguments) != (returns, tuple(arguments)):
            raise ObjCError(
                f"{selector}: the method is {signature.returns} ({' '.join(signature.arguments)}),"
                f" the caller's table has {returns} ({' '.join(arguments)}). Correct its row"
            )

        def send(receiver: Any, *values: Any) -> Any:
            if not receiver:
                return signature.give(None)
            function = self._method(int(ffi.cast(ADDRESS, receiver)), selector)
            arguments, _frame = signature.receive(values)  # the frame holds structs
            result = function(*arguments)
            if isinstance(result, ObjCObject):
                result = ffi.cast(ID, result.handle)
            return signature.give(result)

        return send

    def push_pool(self) -> int:
        """Opens an autorelease pool on this thread."""
        self.pools.append([])
        return len(self.pools)

    def pop_pool(self, pool: int) -> None:
        """Closes this thread's innermost pool. Raises what the last releases raise."""
        if pool != len(self.pools):
            raise ObjCError("autorelease pools must be popped on their thread, innermost first")
        faults = []
        for obj in reversed(self.pools.pop()):
            try:
                self._alive(obj.handle, "release")
                obj.release()
            except ObjCError as fault:
                faults.append(fault)
        if faults:
            raise faults[0]

    def default_device(self) -> Any:
        """A new MTLDevice."""
        return ffi.cast("id", self.classes["MTLDevice"](self).handle)

    # ---- objects

    @property
    def pools(self) -> list[list[ObjCObject]]:
        """This thread's pools, innermost last."""
        if not hasattr(self._local, "pools"):
            self._local.pools = []
        return self._local.pools

    def register(self, obj: ObjCObject) -> int:
        """A handle for a new object."""
        handle = next(self._handles)
        self._objects[handle] = obj
        return handle

    def bury(self, obj: ObjCObject) -> None:
        """Forgets a freed object, but not its name."""
        del self._objects[obj.handle]
        self._zombies[obj.handle] = str(obj)
        if len(self._zombies) > ZOMBIES:
            self._zombies.popitem(last=False)

    def object(self, handle: Any) -> Any:
        """The object of a handle that came as an argument; None for nil."""
        if not handle:
            return None
        return self._alive(int(ffi.cast(ADDRESS, handle)), "used as an argument")

    def live(self) -> list[ObjCObject]:
        """The objects that exist, other than those of Foundation (strings, errors, ...)."""
        return [o for o in self._objects.values() if not type(o).__name__.startswith("NS")]

    def leaks(self) -> list[str]:
        """What was never released, and where it was made."""
        return [
            f"{obj} made at {obj.site} was never released: close it, or use it in a with block"
            for obj in self.live()
        ]

    def _alive(self, handle: int, doing: str) -> ObjCObject:
        obj = self._objects.get(handle)
        if obj is not None:
            return obj
        if handle in self._zombies:
            raise ObjCError(
                f"{self._zombies[handle]} is freed already, and got: {doing}. It was released too "
                "often, or is used after its release or its pool's end: retain what you keep"
            )
        raise ObjCError(f"{handle:#x} is no object (on a Mac: EXC_BAD_ACCESS); it got: {doing}")

    def _method(self, handle: int, selector: str) -> Callable[..., Any]:
        if handle in self._class_of_handle:
            cls = self.classes[self._class_of_handle[handle]]
            answers, receiver = cls.class_messages, f"+[{cls.__name__}"
        else:
            obj = self._alive(handle, selector)
            cls = type(obj)
            answers, receiver = cls.instance_messages, f"-[{obj}"
        name = answers.get(selector)
        if name is None:
            near = difflib.get_close_matches(selector, answers, n=3)
            raise ObjCError(
                f"{receiver} {selector}]: unrecognized selector sent to this object; nearest that "
                f"it answers: {', '.join(near) or 'nothing similar'}"
            )
        if (cls, selector) not in self._allowed:
            self._check_version(cls, selector)
        if answers is cls.class_messages:
            return partial(getattr(cls, name), self)
        return getattr(obj, name)

    def _check_version(self, cls: type[ObjCObject], selector: str) -> None:
        owners = signatures()[selector].owners
        introduced = min(owners[owner] for owner in cls.owners if owner in owners)
        if introduced > self.os_version:
            raise ObjCError(
                f"{cls.__name__} {selector} came with macOS {introduced[0]}.{introduced[1]}; this "
                f"device is macOS {self.os_version[0]}.{self.os_version[1]}: send it only from "
                "that version on"
            )
        self._allowed.add((cls, selector))
