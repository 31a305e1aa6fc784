"""Puts the checking mode's calls into LLVM IR, and keeps a table of where each is in the source.

clang's address sanitizer, told to call functions (`INSTRUMENT_FLAGS`), already marks every load and
store with a call such as `call void @__asan_load4(i64 %p), !dbg !66`. Here each becomes
`call void @msl_access(i64 %p, i64 size, i32 what, i32 site)`: `what` says whether it reads, writes,
is atomic ..., and how it must be aligned, all read off the instruction that follows; `site` is an
index into the table. So a report finds its line without debug information, return addresses or
binutils, on every platform alike.
"""

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

READ, WRITE, ATOMIC, MATRIX, BLOCK, THREE = 1, 2, 4, 8, 16, 32  # as in shadow.h
_OURS = Path(__file__).parent.parent  # what our own headers do for themselves is not reported
REST = 1 << 24  # added to site numbers in the code of lanes 1..31, which has its own table

_SANITIZER = (
    "-fsanitize=kernel-address",
    "-fsanitize=local-bounds",
    "-fsanitize-trap=local-bounds",
)
_PASSES = (
    "-asan-instrumentation-with-call-threshold=0",
    "-asan-stack=0",
    "-asan-globals=0",
    "-asan-opt=0",  # mark a write of what was just read, too
    "-asan-kernel-mem-intrinsic-prefix",
    "-disable-loop-idiom-all",  # as a memcpy, a loop of loads could move to a later line
)
INSTRUMENT_FLAGS = (
    "-O1",
    "-gline-tables-only",
    *(flag for option in _SANITIZER for flag in ("-Xclang", option)),
    *(flag for option in _PASSES for flag in ("-mllvm", option)),
)

_METADATA = re.compile(r"^(!\d+) = (?:distinct )?!(DI\w+)\((.*)\)$", re.MULTILINE)
_FIELD = re.compile(r'(\w+): ("(?:[^"\\]|\\.)*"|[^,]+)')
_MARK = re.compile(
    r"^  (?:tail )?call void @__asan_(load|store)(\d+|N)(?:_noabort)?\(i64 (\S+?)(?:, i64 (\S+))?\)"
)
_BLOCK = re.compile(
    r"^(  (?:%\S+ = )?(?:tail )?call ptr @)__asan_(mem\w+)"
    r"(\(ptr (\S+), (?:ptr|i8|i32) (\S+), i64 (\S+)\).*)"
)
_TRAP = re.compile(r"^  (?:tail )?call void @llvm\.ubsantrap\(")
_ACCESS = re.compile(
    r"^  (?:%\S+ = )?(?:tail )?(load|store|atomicrmw|cmpxchg)"
    r"( atomic)?(?: weak)?(?: volatile)?(?: \w+(?= ptr))? (<[^>]+>|\w+)"
)
_DEBUG = re.compile(r", !dbg (!\d+)")
_ALIGN = re.compile(r", align (\d+)")
_RESULT = re.compile(r"  (%\S+) = load <4 x ")
_NAME = re.compile(r"%[\w.$-]+")
_USES_THREE = re.compile(
    r"extractelement <4 x \w+> %\S+ i64 [012]\b|"
    r"shufflevector <4 x \w+> %\S+ <4 x \w+> poison, <\d x i32> (?!.*i32 3)"
)
_CONSTANT = re.compile(r"^(@\S+) = (?:\w+ )*?constant (.*)$")
_SHADOW_ADDRESS = "@__asan_shadow_memory_dynamic_address"
_DECLARATIONS = """
declare void @msl_access(i64, i64, i32, i32)
declare void @msl_access_block(ptr, i64, i32, i32)
declare void @msl_local_bounds(i32)
"""


class Site(NamedTuple):
    """One place in the source that touches memory."""

    file: str
    line: int
    column: int
    what: int  # READ | WRITE | ATOMIC ...
    align: int  # the address must be a multiple of this
    type: str  # of the value moved, as IR writes it: "float", "<4 x half>"; "" for a block
    callers: tuple[tuple[str, int], ...]  # (file, line) of the calls around it, innermost first


class _Frame(NamedTuple):
    file: str
    folder: str
    function: str
    line: int
    column: int


class _Locations:
    """The source locations (`!dbg`) of an IR file."""

    def __init__(self, ir: str):
        self._nodes = {
            m[1]: (m[2], {k: v.strip('"') for k, v in _FIELD.findall(m[3])})
            for m in _METADATA.finditer(ir)
        }
        self._frames: dict[str, tuple[_Frame, ...]] = {}

    def _scope(self, scope: str) -> tuple[str, str, str]:
        """The file, its folder, and the function that a scope lies in."""
        file = ""
        while True:
            kind, fields = self._nodes[scope]
            file = file or fields["file"]
            if kind == "DISubprogram":
                place = self._nodes[file][1]
                return place["filename"], place["directory"], fields["name"]
            scope = fields["scope"]

    def frames(self, location: str) -> tuple[_Frame, ...]:
        """The location and the calls it was inlined through, innermost first."""
        if location not in self._frames:
            fields = self._nodes[location][1]
            here = _Frame(
                *self._scope(fields["scope"]),
                int(fields.get("line", 0)),
                int(fields.get("column", 0)),
            )
            outer = self.frames(fields["inlinedAt"]) if "inlinedAt" in fields else ()
            self._frames[location] = (here, *outer)
        return self._frames[location]


class _Instrumenter:
    """Instruments one IR file."""

    def __init__(self, ir: str, side: str) -> None:
        self.sites = [Site("", 0, 0, 0, 1, "", ())]  # number 0: no site
        self._locations = _Locations(ir)
        self._lines = ir.split("\n")
        self._end_of_function = 0
        self._first_site = REST if side == "rest" else 0

    def run(self) -> list[str]:
        out = []
        for i, line in enumerate(self._lines):
            if "__asan_" not in line and "ubsantrap" not in line:
                out.append(line)
            elif mark := _MARK.match(line):
                out += self._access(mark, i)
            elif block := _BLOCK.match(line):
                out += self._block(block)
            elif _TRAP.match(line):
                site = self._site(line, WRITE)
                out.append(f"  call void @msl_local_bounds(i32 {site}){_debug(line)}")
            elif line.startswith(_SHADOW_ADDRESS):  # read on some systems, never used
                out.append(f"{_SHADOW_ADDRESS} = internal global i64 0")
            elif line.startswith("declare ptr @__asan_mem"):
                declaration = line.replace("@__asan_", "@")
                if not any(other.startswith(declaration.split("(")[0]) for other in self._lines):
                    out.append(declaration)
            # what is left are declarations, and __asan_handle_no_return
        return out

    def _site(self, line: str, what: int, align: int = 1, type_: str = "") -> int:
        """The number of a new site, or 0 where the access is not the user's."""
        debug = _DEBUG.search(line)
        frames = self._locations.frames(debug[1]) if debug else ()
        inner = list(itertools.takewhile(self._is_ours, frames))
        user = [f for f in frames if not self._is_ours(f)]
        if not user or any(f.function.startswith(("collective", "note")) for f in inner):
            return 0  # the scheduler's own, or notes on a followed thread
        if any(f.function.startswith("simdgroup_") for f in inner):
            what |= MATRIX
        places = [(f.file, f.line) for f in user]
        self.sites.append(Site(*places[0], user[0].column, what, align, type_, tuple(places[1:])))
        return self._first_site + len(self.sites) - 1

    @staticmethod
    def _is_ours(frame: _Frame) -> bool:
        path = Path(frame.folder, frame.file)
        return frame.file == "msl_entries" or path.is_relative_to(_OURS)

    def _uses(self, number: int, name: str) -> list[str]:
        """The instructions that use what the one in this line computes."""
        if number >= self._end_of_function:
            self._end_of_function = self._lines.index("}", number)
            self._uses_of: dict[str, list[str]] = {}
            start = max(i for i in range(number) if self._lines[i].startswith("define "))
            for line in self._lines[start : self._end_of_function]:
                for used in set(_NAME.findall(line.partition(" = ")[2] or line)):
                    self._uses_of.setdefault(used, []).append(line)
        return self._uses_of.get(name, [])

    def _access(self, mark: re.Match[str], number: int) -> list[str]:
        """A load or store, whose mark is in this line and which is the next."""
        line, access = self._lines[number : number + 2]
        what = READ if mark[1] == "load" else WRITE
        found = _ACCESS.match(access)
        type_ = found[3] if found else ""
        if found and found[1] in ("atomicrmw", "cmpxchg"):
            what = READ | WRITE | ATOMIC
        elif found and found[2]:
            what |= ATOMIC
        align = _ALIGN.search(access) if found else None
        size = int(mark[2] if mark[2] != "N" else mark[4])
        result = _RESULT.match(access)
        if result and all(map(_USES_THREE.search, self._uses(number, result[1]))):
            what |= THREE  # clang reads a float3 as a float4
        site = self._site(line, what, int(align[1]) if align else 1, type_)
        if not site:
            return []
        bits = self.sites[-1].what | self.sites[-1].align << 8
        arguments = f"(i64 {mark[3]}, i64 {size}, i32 {bits}, i32 {site})"
        return [f"  call void @msl_access{arguments}{_debug(line)}"]

    def _block(self, block: re.Match[str]) -> list[str]:
        """memcpy, memmove or memset of a whole object."""
        head, name, tail, to, source, size = block.groups()
        calls = []
        for pointer, what in ((source, READ), (to, WRITE)):
            site = self._site(tail, what | BLOCK) if not (name == "memset" and what == READ) else 0
            if site:
                bits = self.sites[-1].what | 1 << 8
                arguments = f"(ptr {pointer}, i64 {size}, i32 {bits}, i32 {site})"
                calls.append(f"  call void @msl_access_block{arguments}{_debug(tail)}")
        return [*calls, head + name + tail]


def _debug(line: str) -> str:
    found = _DEBUG.search(line)
    return found[0] if found else ""


def _type_at_start(text: str) -> str:
    """The IR type that the text starts with, e.g. "[4 x { i32, float }]"."""
    depth = 0
    for i, c in enumerate(text):
        depth += (c in "[<{(") - (c in "]>})")
        if c == " " and depth == 0:
            return text[:i]
    return text


def _constants(lines: Sequence[str]) -> str:
    """A table of the constants of program scope, with their sizes, for the bounds check."""
    rows = []
    for line in lines:
        if found := _CONSTANT.match(line):
            end = f"getelementptr ({_type_at_start(found[2])}, ptr null, i32 1)"
            size = f"ptrtoint (ptr {end} to i64)"
            rows.append(f"{{ ptr, i64 }} {{ ptr {found[1]}, i64 {size} }}")
    rows.append("{ ptr, i64 } zeroinitializer")
    return f"[{len(rows)} x {{ ptr, i64 }}] [{', '.join(rows)}]"


def _string(text: str) -> str:
    """A C string as an IR constant."""
    data = text.encode() + b"\0"
    return f'[{len(data)} x i8] c"' + "".join(f"\\{byte:02x}" for byte in data) + '"'


def instrument(ir: str, side: str, alone: bool) -> str:
    """The IR with the checking mode's calls and tables.

    `side` is "lead" or "rest" (lane 0, the other lanes); `alone`: there is no "rest".
    """
    instrumenter = _Instrumenter(ir, side)
    lines = instrumenter.run()
    export = "dllexport " if re.search(r'^target triple = ".*windows', ir, re.MULTILINE) else ""
    sites = json.dumps(instrumenter.sites)
    lines.append(_DECLARATIONS)
    lines.append(f"@msl_constants_{side} = hidden constant {_constants(lines)}")
    lines.append(f"@msl_sites_{side} = {export}constant {_string(sites)}")
    if alone:
        lines.append(f"@msl_constants_rest = hidden constant {_constants(())}")
    return "\n".join(lines) + "\n"


def read_sites(text: str) -> list[Site]:
    """The table that `instrument` left in the library."""
    return [Site(*row) for row in json.loads(text)]
