"""Apple's Objective-C runtime and Metal, through cffi in ABI mode: nothing is compiled.

objc_msgSend has no type of its own: it jumps to the method, so it must be called exactly as that
method's C function would be. It is therefore cast to one non-variadic type for each signature (on
arm64 variadic arguments travel differently, and a variadic call would crash).
See "Addressing architectural differences in your macOS code" in Apple's documentation.
"""

import ctypes
import platform
from typing import Any

from . import sends
from .api import MetalError, Method, declare, ffi, letters, table
from .objc import Handle, ObjC, Owned, Send

declare("NSArray count objectAtIndex:")
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


class AppleRuntime:
    """The runtime of macOS; see `objc.Runtime`. Raises MetalError where there is no Metal."""

    def __init__(self) -> None:
        if (system := platform.system()) != "Darwin":
            raise MetalError(
                f"expected macOS for device 'metal', found {system}; choose 'soft' or 'cpu'"
            )
        self._intel = platform.machine() == "x86_64"
        self._objc = ffi.dlopen("/usr/lib/libobjc.A.dylib")
        translated, size = ffi.new("int *"), ffi.new("size_t *", ffi.sizeof("int"))
        name = b"sysctl.proc_translated"  # which an Intel Mac does not know: then 0 stays
        ffi.dlopen(None).sysctlbyname(name, translated, size, ffi.NULL, 0)
        if self._intel and translated[0]:
            raise MetalError(
                "this Python is an Intel build running under Rosetta, where Metal's calling "
                "convention differs; install an arm64 Python (`file $(which python3)` says which)"
            )
        self._push = sends.quick(ffi.addressof(self._objc, "objc_autoreleasePoolPush"), "^v")
        self._pop = sends.quick(ffi.addressof(self._objc, "objc_autoreleasePoolPop"), "v")
        # Without CoreGraphics a command-line process finds no default device.
        self._graphics = ffi.dlopen(f"{FRAMEWORKS}/CoreGraphics.framework/CoreGraphics")
        self._metal = ffi.dlopen(f"{FRAMEWORKS}/Metal.framework/Metal")
        self.unverified = self._verify()

    def class_named(self, name: str) -> Handle:
        return self._objc.objc_getClass(name.encode())

    def bind(self, selector: str, returns: str, arguments: tuple[str, ...]) -> Send:
        # On Intel a struct of more than 16 bytes comes back through a hidden pointer.
        stret = self._intel and returns in ("{QQQ}", "{qqq}")
        entry = ffi.addressof(self._objc, "objc_msgSend_stret" if stret else "objc_msgSend")
        name = self._objc.sel_registerName(selector.encode())
        return sends.bind(entry, name, selector, returns, arguments)

    def push_pool(self) -> Any:
        return self._push()

    def pop_pool(self, pool: Any) -> None:
        self._pop(ctypes.c_void_p(pool))

    def default_device(self) -> Handle:
        """The GPU. The default device is nil over ssh and in some CI: then the first of all."""
        if device := self._metal.MTLCreateSystemDefaultDevice():
            return device
        objc = ObjC(self)
        with Owned(objc, self._metal.MTLCopyAllDevices(), "list of devices") as devices:
            if not objc.send.count(devices.handle):
                raise MetalError("macOS lists no Metal device here; choose 'soft' or 'cpu'")
            return objc.send.retain(objc.send.objectAtIndex_(devices.handle, 0))

    def _verify(self) -> list[str]:
        """Compares the table with this system before the first message is sent.

        Returns what the system does not publish. Raises MetalError for what it says otherwise.
        """
        system = tuple(int(number) for number in platform.mac_ver()[0].split(".")[:2])
        wrong, unknown = [], []
        for method in table().values():
            name, encoding = f"{method.owner} {method.selector}", self._encoding(method)
            if encoding and letters(encoding) != f"{method.returns}@:{''.join(method.arguments)}":
                wrong.append(f"{name}: this macOS says {encoding}")
            elif not encoding and method.introduced <= system:
                unknown.append(name)
        if wrong:
            raise MetalError(
                "mtl/api.tsv disagrees with this macOS; sending would crash. Correct these rows: "
                + "; ".join(wrong)
            )
        return unknown

    def _encoding(self, method: Method) -> str:
        """The types of a method as this system's class or protocol publishes them, or ""."""
        objc, types, instance = self._objc, ffi.NULL, not method.is_class_method
        owner, name = method.owner.encode(), objc.sel_registerName(method.selector.encode())
        if cls := objc.objc_getClass(owner):
            get = objc.class_getInstanceMethod if instance else objc.class_getClassMethod
            if found := get(cls, name):
                types = objc.method_getTypeEncoding(found)
        elif protocol := objc.objc_getProtocol(owner):
            for required in (True, False):
                get = objc.protocol_getMethodDescription
                types = types or get(protocol, name, required, instance).types
        return ffi.string(types).decode() if types else ""
