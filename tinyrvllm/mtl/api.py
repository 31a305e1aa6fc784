"""What Metal's methods look like to C: the only place where a type is decided.

`api.tsv` lists every selector the bridge sends, a row each: owner (class or protocol), selector,
class or instance method, the @encode letters of its result and arguments, and the macOS version
that introduced it. A module declares the rows it sends with `declare` when it is imported, so a
mistyped selector fails there, on every operating system, and not on a Mac at run time.
"""

import csv
import difflib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import cffi

from tinyrvllm.errors import TinyrvllmError

ffi = cffi.FFI()
ffi.cdef("""
    typedef void *id; typedef void *SEL; typedef void *Class;
    typedef struct { uint64_t width, height, depth; } MTLSize;
    typedef struct { uint64_t location, length; } NSRange;
    typedef struct { int64_t major, minor, patch; } NSOperatingSystemVersion;
""")

# @encode letters -> C. NSUInteger is Q. BOOL is B on arm64 and c on x86-64: both one byte.
C_TYPES = {
    "@": "id", "#": "Class", ":": "SEL", "v": "void", "B": "_Bool", "d": "double",
    "Q": "uint64_t", "q": "int64_t", "*": "char *", "^v": "void *", "^@": "id *", "@?": "void *",
    "^Q": "uint64_t *", "{QQQ}": "MTLSize", "{QQ}": "NSRange", "{qqq}": "NSOperatingSystemVersion",
}  # fmt: skip

# Constants, under Apple's names (Metal headers of the macOS 26.5 SDK).
MTLResourceStorageModeShared = 0
MTLDispatchTypeSerial, MTLDispatchTypeConcurrent = 0, 1
MTLCommandBufferStatusCompleted = 4
MTLBarrierScopeBuffers = 1
MTLResourceUsageRead, MTLResourceUsageWrite = 1, 2
MTLMathModeSafe = 0
MTLMathFloatingPointFunctionsPrecise = 1
MTLIndirectCommandTypeConcurrentDispatch = 32
MTLPipelineOptionNone = 0
MTLGPUFamilies = {f"Apple{n}": 1000 + n for n in range(5, 11)} | {"Metal3": 5001, "Metal4": 5002}
MTLDataTypes = {  # MSL scalar type -> MTLDataType
    "bool": 53, "char": 45, "uchar": 49, "short": 37, "ushort": 41, "int": 29, "uint": 33,
    "long": 81, "ulong": 85, "half": 16, "float": 3,
}  # fmt: skip


class MetalError(TinyrvllmError):
    """Metal refused something, or was asked for something it cannot do."""


@dataclass(frozen=True)
class Method:
    """One row of the table: what a message sends and what comes back, in @encode letters."""

    owner: str
    selector: str
    is_class_method: bool
    returns: str
    arguments: tuple[str, ...]
    introduced: tuple[int, int]

    @property
    def c_signature(self) -> str:
        """A C function type: receiver and selector come first in every message."""
        arguments = ["id", "SEL", *(C_TYPES[letter] for letter in self.arguments)]
        return f"{C_TYPES[self.returns]}(*)({', '.join(arguments)})"


@cache
def table() -> dict[tuple[str, str], Method]:
    """(owner, selector) -> Method, as checked in."""
    text = Path(__file__).with_name("api.tsv").read_text(encoding="utf-8")
    methods = (
        Method(
            owner=row["owner"],
            selector=row["selector"],
            is_class_method=row["level"] == "class",
            returns=row["returns"],
            arguments=tuple(row["arguments"].split()),
            introduced=version(row["introduced"]),
        )
        for row in csv.DictReader(text.splitlines(), delimiter="\t")
    )
    return {(method.owner, method.selector): method for method in methods}


declared: set[Method] = set()  # every row that some module of the bridge sends


def declare(**messages: str) -> dict[str, Method]:
    """Names the messages that a module sends: `declare(length="MTLBuffer length", ...)`.

    Raises MetalError, with the nearest rows, for a message that is not in the table.
    """
    found = {}
    for name, message in messages.items():
        owner, _, selector = message.partition(" ")
        method = table().get((owner, selector))
        if method is None:
            known = [f"{o} {s}" for o, s in table()]
            near = difflib.get_close_matches(message, known, n=3) or ["nothing similar"]
            raise MetalError(
                f"expected a method of mtl/api.tsv, found {message!r}; nearest: {', '.join(near)}. "
                "Correct the name, or add the row."
            )
        if method.selector.count(":") != len(method.arguments):
            raise MetalError(f"mtl/api.tsv: {message!r} needs one argument type for each colon")
        found[name] = method
    declared.update(found.values())
    return found


def version(text: str) -> tuple[int, int]:
    """ "10.15" -> (10, 15)."""
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)


def parse_encoding(encoding: str) -> tuple[str, tuple[str, ...]]:
    """What clang emits for a method -> (result, arguments) in the letters of our table.

    "v24@0:8r^v16" has sizes, stack offsets, qualifiers (r is const) and struct names in it:
    none of them matters to a call. The receiver and the selector are dropped.
    """
    plain = re.sub(r"\{[^={}]*=", "{", encoding)  # struct names, "?" when anonymous
    types = re.findall(r"[rnNoORVA]*((?:\^*)(?:\{[^}]*\}|@\?|[@#:vBcCiIsSqQfd*]))\d*", plain)
    types = ["B" if letter == "c" else letter for letter in types]
    return types[0], tuple(types[3:])
