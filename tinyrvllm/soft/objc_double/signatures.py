"""What messages look like to C, as the double believes: read from its own extract of the API.

The caller brings its own belief (tinyrvllm/mtl/api.tsv). Both are compared when a message is
bound, and every value is converted through the C type, so that a wrong width, sign or pointer is
an error here and not a crash on a Mac. The extract comes from Apple's headers; its last column is
what Apple's clang emitted for the method, where that is published.
"""

import csv
import re
import threading
from collections import defaultdict
from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import cffi

ffi = cffi.FFI()
ffi.cdef("""
    typedef void *id; typedef void *SEL; typedef void *Class;
    typedef struct { uint64_t width, height, depth; } MTLSize;
    typedef struct { uint64_t location, length; } NSRange;
    typedef struct { uint64_t size, align; } MTLSizeAndAlign;
    typedef struct { uint64_t impl; } MTLResourceID;
    typedef struct { int64_t major, minor, patch; } NSOperatingSystemVersion;
""")
C_TYPES = {
    "v": "void", "@": "id", "#": "Class", ":": "SEL", "B": "_Bool", "d": "double", "Q": "uint64_t",
    "q": "int64_t", "*": "char *", "^v": "void *", "^@": "id *", "^Q": "uint64_t *",
    "@?": "void *", "{QQQ}": "MTLSize", "{QQ}": "NSRange", "{Q}": "MTLResourceID",
    "{qqq}": "NSOperatingSystemVersion",
}  # fmt: skip
_DECLARING = threading.Lock()
_DECLARED: set[str] = set()


class ObjCError(RuntimeError):
    """The program broke a rule of Objective-C or of Metal. On a Mac: abort, crash or silence."""


class Signature:
    """One selector's C types. `owners`: which class has it since which macOS version."""

    def __init__(
        self,
        selector: str,
        returns: str,
        arguments: tuple[str, ...],
        owners: dict[str, tuple[int, int]],
    ) -> None:
        self.selector, self.returns, self.arguments = selector, returns, arguments
        self.owners = owners
        self._fields = [f"a{place}" for place in range(len(arguments))]
        self._has_struct = any(letter[0] == "{" for letter in arguments)
        self._result = None if returns == "v" else ffi.typeof(f"{C_TYPES[returns]} *")

    @cached_property
    def _frame(self) -> Any:
        """A C struct with one field for each argument: what a call would put in registers."""
        name = "frame_" + re.sub(r"\W", "_", self.selector)
        types = zip(self.arguments, self._fields, strict=True)
        fields = "".join(f"{C_TYPES[letter]} {field};" for letter, field in types)
        with _DECLARING:  # a cached_property may be computed twice, by two threads
            if name not in _DECLARED:
                ffi.cdef(f"struct {name} {{ {fields} }};")
                _DECLARED.add(name)
        return ffi.typeof(f"struct {name} *")

    def receive(self, values: Sequence[Any]) -> tuple[list[Any], Any]:
        """The caller's values as this method's C types hold them, and the memory behind them.

        Raises ObjCError for a number that does not fit and for a pointer of the wrong kind.
        """
        if len(values) != len(self.arguments):
            raise ObjCError(
                f"{self.selector}: expected {len(self.arguments)} arguments, found {len(values)}"
            )
        if not values:
            return [], None
        if self._has_struct:
            values = [as_tuple(value) for value in values]
        try:
            frame = ffi.new(self._frame, values)
        except (TypeError, OverflowError) as error:
            types = ", ".join(C_TYPES[letter] for letter in self.arguments)
            raise ObjCError(f"{self.selector} takes ({types}), found {values}: {error}") from None
        return [getattr(frame, field) for field in self._fields], frame

    def give(self, value: Any) -> Any:
        """A method's result as its C type: an object's handle; None is nil, 0 or void."""
        if self._result is None:
            return None
        if value is None:
            return ffi.new(self._result)[0]
        return ffi.new(self._result, getattr(value, "handle", value))[0]


def as_tuple(value: Any) -> Any:
    """A struct of the caller's own cffi as the numbers in it; anything else as it is."""
    if isinstance(value, ffi.CData) and ffi.typeof(value).kind == "struct":
        return tuple(getattr(value, name) for name, _ in ffi.typeof(value).fields)
    return value


@cache
def signatures() -> dict[str, Signature]:
    """selector -> Signature. A selector has the same types in every class that has it."""
    text = Path(__file__).with_name("methods.tsv").read_text(encoding="utf-8")
    owners: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
    types: dict[str, tuple[str, tuple[str, ...]]] = {}
    for row in csv.DictReader(text.splitlines(), delimiter="\t"):
        major, _, minor = row["introduced"].partition(".")
        owners[row["selector"]][row["owner"]] = (int(major), int(minor or 0))
        types[row["selector"]] = (row["returns"], tuple(row["arguments"].split()))
    return {name: Signature(name, *types[name], owners[name]) for name in types}
