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
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from .signatures import ObjCError, ffi, signatures

ZOMBIES = 10_000  # freed objects whose names are kept
PACKAGE = str(Path(__file__).parents[2])  # code above it in the stack is the program's own
ID = ffi.typeof("id")
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
        self.os_version: tuple[int, int]  # of macOS, said by a subclass: newer messages are refused
        self.unverified: list[str] = []  # none: `bind` compares every message
        self.lock = threading.RLock()
        self.faults: list[str] = []  # rules broken while an object was freed
        # handle -> what it stands for; pointers of cffi are equal when their addresses are
        self._objects: dict[Any, ObjCObject] = {}
        self._zombies: OrderedDict[Any, str] = OrderedDict()
        self._numbers = itertools.count(0x7F0000001000, 16)
        self._class_handles = {name: self._new_handle() for name in classes}
        self._class_of = {handle: classes[name] for name, handle in self._class_handles.items()}
        self._local = threading.local()

    # ---- the five operations

    def class_named(self, name: str) -> Any:
        """The class object, or nil."""
        return self._class_handles.get(name, ffi.NULL)

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

        objects = self._objects
        answers: dict[type[ObjCObject], Callable[..., Any]] = {}

        def send(receiver: Any, *values: Any) -> Any:
            obj = objects.get(receiver)
            if obj is not None:
                cls = type(obj)
                function = answers.get(cls)
                if function is None:
                    function = answers[cls] = self._instance_answer(obj, selector)
                arguments, _frame = signature.receive(values)  # the frame holds structs
                return signature.give(function(obj, *arguments))
            if not receiver:
                return signature.give(None)
            function = self._class_answer(receiver, selector)
            return signature.give(function(self, *signature.receive(values)[0]))

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
        return self.classes["MTLDevice"](self).handle

    # ---- objects

    @property
    def pools(self) -> list[list[ObjCObject]]:
        """This thread's pools, innermost last."""
        if not hasattr(self._local, "pools"):
            self._local.pools = []
        return self._local.pools

    def _new_handle(self) -> Any:
        return ffi.cast(ID, next(self._numbers))

    def register(self, obj: ObjCObject) -> Any:
        """A handle for a new object."""
        handle = self._new_handle()
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
        return self._alive(handle, "used as an argument") if handle else None

    def live(self) -> list[ObjCObject]:
        """The objects that exist, other than those of Foundation (strings, errors, ...)."""
        return [o for o in self._objects.values() if not type(o).__name__.startswith("NS")]

    def leaks(self) -> list[str]:
        """What was never released, and where it was made."""
        return [
            f"{obj} made at {obj.site} was never released: close it, or use it in a with block"
            for obj in self.live()
        ]

    def _alive(self, handle: Any, doing: str) -> ObjCObject:
        obj = self._objects.get(handle)
        if obj is not None:
            return obj
        if handle in self._zombies:
            raise ObjCError(
                f"{self._zombies[handle]} is freed already, and got: {doing}. It was released too "
                "often, or is used after its release or its pool's end: retain what you keep"
            )
        address = int(ffi.cast("uintptr_t", handle))
        raise ObjCError(f"{address:#x} is no object (on a Mac: EXC_BAD_ACCESS); it got: {doing}")

    def _instance_answer(self, obj: ObjCObject, selector: str) -> Callable[..., Any]:
        """The Python function behind a message; called with the object first."""
        cls = type(obj)
        name = _known(selector, cls.instance_messages, f"-[{obj} {selector}]")
        self._check_version(cls, selector)
        return getattr(cls, name)

    def _class_answer(self, handle: Any, selector: str) -> Callable[..., Any]:
        """The class method behind a message; called with the runtime first."""
        cls = self._class_of.get(handle)
        if cls is None:
            self._alive(handle, selector)  # raises: a zombie, or no object at all
            raise AssertionError("a live object was not found")
        name = _known(selector, cls.class_messages, f"+[{cls.__name__} {selector}]")
        self._check_version(cls, selector)
        return getattr(cls, name)

    def _check_version(self, cls: type[ObjCObject], selector: str) -> None:
        owners = signatures()[selector].owners
        introduced = min(owners[owner] for owner in cls.owners if owner in owners)
        if introduced > self.os_version:
            raise ObjCError(
                f"{cls.__name__} {selector} came with macOS {introduced[0]}.{introduced[1]}; this "
                f"device is macOS {self.os_version[0]}.{self.os_version[1]}: send it only from "
                "that version on"
            )


def _known(selector: str, answers: dict[str, str], message: str) -> str:
    name = answers.get(selector)
    if name is None:
        near = difflib.get_close_matches(selector, answers, n=3)
        raise ObjCError(
            f"{message}: unrecognized selector sent to this object; nearest that it answers: "
            f"{', '.join(near) or 'nothing similar'}"
        )
    return name
