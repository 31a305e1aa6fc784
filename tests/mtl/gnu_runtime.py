"""A third runtime: GNUstep's, which we did not write, with the double's Metal classes in it.

Messages, retain counts, autorelease pools and strings are GNU's. Only what a Metal class does is
the double's: each MTL object is a GNU object in front of one of the double's, and each method a C
callback.
GNU differs from Apple: no objc_msgSend but objc_msg_lookup and a call; pools are objects; a
foreign thread must register; an unknown selector aborts the process.
"""

import threading
from collections.abc import Callable
from typing import Any

from tinyrvllm.mtl import apple  # noqa: F401  declares the functions that Apple and GNU share
from tinyrvllm.mtl.api import C_TYPES, c_type, ffi
from tinyrvllm.soft.objc_double import SoftRuntime
from tinyrvllm.soft.objc_double.runtime import ObjCObject
from tinyrvllm.soft.objc_double.signatures import as_tuple, signatures

ffi.cdef("""
    typedef void (*IMP)(void);
    SEL sel_registerTypedName(const char *, const char *);
    IMP objc_msg_lookup(id, SEL);
    Class objc_allocateClassPair(Class, const char *, size_t);
    void objc_registerClassPair(Class);
    signed char class_addMethod(Class, SEL, IMP, const char *);
    IMP class_getMethodImplementation(Class, SEL);
    signed char GSRegisterCurrentThread(void);
    extern id NSLocalizedDescriptionKey;
""")
OWN = {"retain", "release", "retainCount", "new"}  # GNU's NSObject answers these


def libraries() -> tuple[Any, Any]:
    """libobjc and GNUstep's Foundation. Raises OSError where they are not installed."""
    return ffi.dlopen("libobjc.so.4"), ffi.dlopen("libgnustep-base.so.1.28")


class GnuRuntime:
    """See tinyrvllm.mtl.objc.Runtime."""

    _classes = 0  # a process-wide name can be registered once

    def __init__(self, double: SoftRuntime) -> None:
        self.double = double
        self.unverified: list[str] = []
        self.objc, self.base = libraries()
        self._local = threading.local()
        self._kept: list[Any] = []  # callbacks, which C refers to
        self._behind: dict[Any, ObjCObject] = {}  # GNU object -> the double's
        self._faults: list[Exception] = []
        self._own: dict[str, Any] = {}  # class name -> class
        GnuRuntime._classes += 1
        for name, cls in double.classes.items():
            if not name.startswith("NS") or name == "NSProcessInfo":
                self._register(name, cls)

    # ---- the five operations

    def class_named(self, name: str) -> Any:
        return self._own.get(name) or self.objc.objc_getClass(name.encode())

    def bind(self, selector: str, returns: str, arguments: tuple[str, ...]) -> Callable[..., Any]:
        cast = ffi.typeof(c_type(returns, arguments))
        name = self._selector(selector, returns, arguments)

        def send(receiver: Any, *values: Any) -> Any:
            self._thread()
            function = ffi.cast(cast, self.objc.objc_msg_lookup(receiver, name))
            result = function(receiver, name, *values)
            if self._faults:
                raise self._faults.pop(0)
            return result

        return send

    def push_pool(self) -> Any:
        self._thread()
        return self._send("@", "new", "", self.objc.objc_getClass(b"NSAutoreleasePool"))

    def pop_pool(self, pool: Any) -> None:
        self._send("v", "drain", "", pool)
        if self._faults:
            raise self._faults.pop(0)

    def default_device(self) -> Any:
        return self._in_front(self.double.object(self.double.default_device()))

    # ---- GNU

    def _thread(self) -> None:
        if not hasattr(self._local, "registered"):
            self.base.GSRegisterCurrentThread()
            self._local.registered = True

    def _selector(self, name: str, returns: str, arguments: tuple[str, ...]) -> Any:
        types = returns + "@:" + "".join(arguments)
        for plain, named in (("{QQQ}", "{?=QQQ}"), ("{QQ}", "{_NSRange=QQ}"), ("{qqq}", "{?=qqq}")):
            types = types.replace(plain, named)
        return self.objc.sel_registerTypedName(name.encode(), types.encode())

    def _send(self, returns: str, selector: str, letters: str, receiver: Any, *values: Any) -> Any:
        return self.bind(selector, returns, tuple(letters.split()))(receiver, *values)

    def _string(self, text: str) -> Any:
        utf8 = ffi.new("char[]", text.encode())
        return self._send("@", "stringWithUTF8String:", "*", self.class_named("NSString"), utf8)

    # ---- the double's classes as GNU classes

    def _register(self, name: str, cls: type[ObjCObject]) -> None:
        parent = self.objc.objc_getClass(b"NSObject")
        full = f"Soft{GnuRuntime._classes}{name}".encode()
        new = self.objc.objc_allocateClassPair(parent, full, 0)
        for selector in set(cls.instance_messages) - OWN:
            target = lambda receiver: self._behind[receiver].handle
            self._method(new, selector, self._forward(selector, target))
        self._method(new, "dealloc", self._dealloc, signature=("v", ()))
        self.objc.objc_registerClassPair(new)
        meta = ffi.cast("Class *", new)[0]  # the class of a class is its first word
        for selector in cls.class_messages:
            handle = self.double.class_named(name)
            self._method(meta, selector, self._forward(selector, lambda _, handle=handle: handle))
        self._own[name] = new

    def _method(
        self, cls: Any, selector: str, function: Callable[..., Any], signature: Any = None
    ) -> None:
        known = signatures().get(selector)
        returns, arguments = signature or (known.returns, known.arguments)
        if any(letter not in C_TYPES for letter in (returns, *arguments)):
            return  # a type that the bridge does not use
        types = ", ".join(["id", "SEL", *(C_TYPES[letter] for letter in arguments)])

        def answer(receiver: Any, _: Any, *values: Any) -> Any:
            result = function(receiver, *values)
            if isinstance(result, ObjCObject):
                result = self._give(result, owned=selector.startswith("new"))
            if result is None and returns[0] in "@^*":
                return ffi.NULL
            if returns == "v":
                return None
            return ffi.new(f"{C_TYPES[returns]} *", as_tuple(result))[0]

        callback = ffi.callback(
            f"{C_TYPES[returns]}({types})",
            answer,
            onerror=lambda kind, error, trace: self._faults.append(error),
        )
        self._kept.append(callback)
        name = self._selector(selector, returns, arguments)
        self.objc.class_addMethod(cls, name, ffi.cast("IMP", callback), b"v@:")

    def _forward(self, selector: str, target: Callable[[Any], Any]) -> Callable[..., Any]:
        """Sends a message on to the double, with the double's handles in it."""
        signature = signatures()[selector]
        send = self.double.bind(selector, signature.returns, signature.arguments)

        def forward(receiver: Any, *values: Any) -> Any:
            pool = self.double.push_pool()
            try:
                given = [
                    self._take(letter, value, values[place + 1 :])
                    for place, (letter, value) in enumerate(
                        zip(signature.arguments, values, strict=True)
                    )
                ]
                result = send(target(receiver), *given)
                if selector.endswith("error:") and values[-1]:
                    error = self.double.object(given[-1][0])
                    values[-1][0] = self._error(error) if error else ffi.NULL
                if signature.returns == "@" and result:
                    found = self.double.object(result)
                    if not selector.startswith("new"):
                        found.retain()  # the double's pool ends here
                    return found
                return result
            finally:
                self.double.pop_pool(pool)

        return forward

    def _take(self, letter: str, value: Any, following: tuple[Any, ...]) -> Any:
        """A GNU argument as the double's."""
        if letter == "@" and value:
            if value in self._behind:
                return self._behind[value].handle
            text = ffi.string(self._send("*", "UTF8String", "", value))
            return self.double.bind("stringWithUTF8String:", "@", ("*",))(
                self.double.class_named("NSString"), ffi.new("char[]", text)
            )
        if letter == "^@" and value and not following:
            return ffi.new("id *")  # an NSError **
        if letter == "^@" and value:
            last = following[-1]
            count = following[0] if isinstance(last, int) else last.length
            return ffi.new("id[]", [self._behind[value[i]].handle for i in range(count)])
        return value

    def _in_front(self, obj: ObjCObject) -> Any:
        """An owned GNU object that holds the double's, whose count it takes over."""
        handle = self._send("@", "alloc", "", self._own[type(obj).__name__])
        handle = self._send("@", "init", "", handle)
        self._behind[handle] = obj
        return handle

    def _give(self, obj: ObjCObject, owned: bool) -> Any:
        """The double's result, for GNU: autoreleased unless it is owned."""
        name = type(obj).__name__
        if name == "NSString":
            text = self._string(obj.text)  # type: ignore[attr-defined]
            obj.release()
            return text
        if name == "NSArray":
            items = [self._string(item.text) for item in obj._items]  # type: ignore[attr-defined]
            obj.release()
            array = self.objc.objc_getClass(b"NSArray")
            make = "arrayWithObjects:count:"
            return self._send("@", make, "^@ Q", array, ffi.new("id[]", items), len(items))
        handle = self._in_front(obj) if name != "NSError" else self._error(obj)
        if not owned and name != "NSError":
            self._send("@", "autorelease", "", handle)
        return handle

    def _error(self, error: Any) -> Any:
        """An autoreleased NSError with the double's text."""
        keys = ffi.new("id[]", [self.base.NSLocalizedDescriptionKey])
        texts = ffi.new("id[]", [self._string(error.text)])
        dictionary = self.objc.objc_getClass(b"NSDictionary")
        make = "dictionaryWithObjects:forKeys:count:"
        info = self._send("@", make, "^@ ^@ Q", dictionary, texts, keys, 1)
        domain = self._string("MTLErrorDomain")
        cls, make = self.objc.objc_getClass(b"NSError"), "errorWithDomain:code:userInfo:"
        return self._send("@", make, "@ q @", cls, domain, 1, info)

    def _dealloc(self, receiver: Any) -> None:
        obj = self._behind.pop(receiver)
        try:
            obj.release()
        finally:
            name = self.objc.sel_registerName(b"dealloc")
            parent = self.objc.objc_getClass(b"NSObject")
            function = self.objc.class_getMethodImplementation(parent, name)
            ffi.cast("void(*)(id, SEL)", function)(receiver, name)
