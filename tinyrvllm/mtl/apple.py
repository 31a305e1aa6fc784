"""Apple's Objective-C runtime and Metal, through cffi in ABI mode: nothing is compiled.

objc_msgSend has no type of its own: it jumps to the method, so it must be called exactly as that
method's C function would be. It is therefore cast to one non-variadic type for each signature (on
arm64 variadic arguments travel differently, and a variadic call would crash).
See "Addressing architectural differences in your macOS code" in Apple's documentation.
"""

import ctypes
import platform
from collections.abc import Callable
from functools import cached_property
from typing import Any

from . import sends
from .api import MetalError, Method, declare, declared, ffi, parse_encoding, version

ffi.cdef("""
    struct objc_method_description { SEL name; char *types; };
    Class objc_getClass(const char *);
    void *objc_getProtocol(const char *);
    SEL sel_registerName(const char *);
    void objc_msgSend(void);
    void objc_msgSend_stret(void);
    void *objc_autoreleasePoolPush(void);
    void objc_autoreleasePoolPop(void *);
    void *class_getInstanceMethod(Class, SEL);
    void *class_getClassMethod(Class, SEL);
    char *method_getTypeEncoding(void *);
    struct objc_method_description protocol_getMethodDescription(void *, SEL, _Bool, _Bool);
    int sysctlbyname(const char *, void *, size_t *, void *, size_t);
    id MTLCreateSystemDefaultDevice(void);
    id MTLCopyAllDevices(void);
""")
FRAMEWORKS = "/System/Library/Frameworks"
MESSAGES = declare(
    count="NSArray count",
    at="NSArray objectAtIndex:",
    retain="NSObject retain",
    release="NSObject release",
)


class AppleRuntime:
    """The runtime of macOS; see `objc.Runtime`. Raises MetalError where there is no Metal."""

    name = "metal"

    def __init__(self) -> None:
        if platform.system() != "Darwin":
            found = platform.system()
            raise MetalError(
                f"expected macOS for device 'metal', found {found}; choose 'soft' or 'cpu'"
            )
        self._intel = platform.machine() == "x86_64"
        self._objc = ffi.dlopen("/usr/lib/libobjc.A.dylib")
        if self._intel and self._translated():
            raise MetalError(
                "this Python is an Intel build running under Rosetta, where Metal's calling "
                "convention differs; install an arm64 Python (`file $(which python3)` says which)"
            )
        self._push = sends.quick(ffi.addressof(self._objc, "objc_autoreleasePoolPush"), "^v")
        self._pop = sends.quick(ffi.addressof(self._objc, "objc_autoreleasePoolPop"), "v")
        # Without CoreGraphics a command-line process finds no default device.
        self._graphics = ffi.dlopen(f"{FRAMEWORKS}/CoreGraphics.framework/CoreGraphics")
        self._metal = ffi.dlopen(f"{FRAMEWORKS}/Metal.framework/Metal")
        self._verify()

    def _translated(self) -> bool:
        translated, size = ffi.new("int *"), ffi.new("size_t *", ffi.sizeof("int"))
        system = ffi.dlopen(None)
        found = system.sysctlbyname(b"sysctl.proc_translated", translated, size, ffi.NULL, 0)
        return found == 0 and translated[0] == 1

    def class_named(self, name: str) -> Any:
        return self._objc.objc_getClass(name.encode())

    def bind(self, selector: str, returns: str, arguments: tuple[str, ...]) -> Callable[..., Any]:
        # On Intel a struct of more than 16 bytes comes back through a hidden pointer.
        stret = self._intel and returns in ("{QQQ}", "{qqq}")
        entry = ffi.addressof(self._objc, "objc_msgSend_stret" if stret else "objc_msgSend")
        name = self._objc.sel_registerName(selector.encode())
        return sends.bind(entry, name, selector, returns, arguments)

    def push_pool(self) -> Any:
        return self._push()

    def pop_pool(self, pool: Any) -> None:
        self._pop(ctypes.c_void_p(pool))

    def default_device(self) -> Any:
        """The GPU. The default device is nil over ssh and in some CI: then the first of all."""
        device = self._metal.MTLCreateSystemDefaultDevice()
        if device:
            return device
        send = {
            name: self.bind(method.selector, method.returns, method.arguments)
            for name, method in MESSAGES.items()
        }
        devices = self._metal.MTLCopyAllDevices()
        try:
            if not devices or not send["count"](devices):
                raise MetalError("macOS lists no Metal device here; choose 'soft' or 'cpu'")
            return send["retain"](send["at"](devices, 0))
        finally:
            send["release"](devices)

    # ---- the table against this system, before the first message

    @cached_property
    def unverified(self) -> list[str]:
        """Messages whose types this system does not publish: `doctor` lists them."""
        system = version(".".join(platform.mac_ver()[0].split(".")[:2]))
        methods = [m for m in declared if m.introduced <= system]
        return [f"{m.owner} {m.selector}" for m in methods if self._encoding(m) is None]

    def _verify(self) -> None:
        wrong = []
        for method in declared:
            encoding = self._encoding(method)
            if encoding and parse_encoding(encoding) != (method.returns, method.arguments):
                wrong.append(f"{method.owner} {method.selector}: this macOS says {encoding}")
        if wrong:
            raise MetalError(
                "mtl/api.tsv disagrees with this macOS; sending would crash. Correct these rows: "
                + "; ".join(wrong)
            )

    def _encoding(self, method: Method) -> str | None:
        """The types of a method as this system's class or protocol publishes them."""
        owner, name = method.owner.encode(), self._objc.sel_registerName(method.selector.encode())
        cls = self._objc.objc_getClass(owner)
        if cls:
            look = "class_getClassMethod" if method.is_class_method else "class_getInstanceMethod"
            found = getattr(self._objc, look)(cls, name)
            types = self._objc.method_getTypeEncoding(found) if found else ffi.NULL
            return ffi.string(types).decode() if types else None
        protocol = self._objc.objc_getProtocol(owner)
        if not protocol:
            return None
        for required in (True, False):
            types = self._objc.protocol_getMethodDescription(
                protocol, name, required, not method.is_class_method
            ).types
            if types:
                return ffi.string(types).decode()
        return None
