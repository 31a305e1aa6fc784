"""What Metal's methods look like to C: the only place where a type is decided.

`api.tsv` has a row for each message: owner (a class or protocol), selector, class or instance
method, the @encode letters of result and arguments, and the macOS that introduced it. A module
names what it sends with `declare` when it is imported, so a mistyped selector fails there, on
every operating system, and not on a Mac at run time.
"""

import difflib
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

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
MTLDataTypes = {  # numpy scalar type -> MTLDataType
    "bool": 53, "int8": 45, "uint8": 49, "int16": 37, "uint16": 41, "int32": 29, "uint32": 33,
    "int64": 81, "uint64": 85, "float16": 16, "float32": 3,
}  # fmt: skip


class MetalError(TinyrvllmError):
    """Metal refused something, or was asked for something it cannot do."""


class Method(NamedTuple):
    """One row of the table: what a message sends and what comes back, in @encode letters."""

    owner: str
    selector: str
    is_class_method: bool
    returns: str
    arguments: tuple[str, ...]
    introduced: tuple[int, ...]


@cache
def table() -> dict[tuple[str, str], Method]:
    """(owner, selector) -> Method, as checked in."""
    text = Path(__file__).with_name("api.tsv").read_text(encoding="utf-8")
    methods = {}
    for line in text.splitlines()[1:]:
        owner, selector, level, returns, arguments, since = line.split("\t")
        types = returns, tuple(arguments.split())
        introduced = tuple(map(int, since.split(".")))
        methods[owner, selector] = Method(owner, selector, level == "class", *types, introduced)
    return methods


declared: dict[str, Method] = {}  # "setBuffer_offset_atIndex_" -> what some module sends under it


def declare(*messages: str) -> list[Method]:
    """Names what a module sends, `declare("MTLDevice name newCommandQueue", ...)`: owner, selectors.

    Raises MetalError, with the nearest rows, for a message that is not in the table.
    """
    names = [(owner, selector) for owner, *all in map(str.split, messages) for selector in all]
    for name in set(names) - set(table()):
        near = difflib.get_close_matches(" ".join(name), map(" ".join, table()))
        raise MetalError(
            f"expected a method of mtl/api.tsv, found {' '.join(name)!r}; nearest: "
            f"{', '.join(near) or 'nothing similar'}. Correct the name, or add the row."
        )
    methods = [table()[name] for name in names]
    declared.update((method.selector.replace(":", "_"), method) for method in methods)
    return methods


def c_type(returns: str, arguments: tuple[str, ...]) -> str:
    """A method's C function type: receiver and selector come first in every message."""
    types = ["id", "SEL", *(C_TYPES[letter] for letter in arguments)]
    return f"{C_TYPES[returns]}(*)({', '.join(types)})"


def letters(encoding: str) -> str:
    """What a runtime publishes for a method -> the letters that matter to a call, BOOL as B.

    "v24@0:8r^v16" is "v@:^v": without sizes and offsets, qualifiers (r is const), struct names.
    """
    return re.sub(r"(?<=\{)[^={}]*=|\d+|[rnNoORVA]", "", encoding).replace("c", "B")
