"""The checking mode's reports: from the native code's numbers to the source's own terms."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tinyrvllm.soft.cpu.guard import Guard
from tinyrvllm.soft.cpu.instrument import ATOMIC, MATRIX, READ, WRITE, Site
from tinyrvllm.soft.msl.kernels import Param

_KINDS = (  # in the order of check.h, from 1
    "out-of-bounds",
    "threadgroup-out-of-bounds",
    "local-out-of-bounds",
    "misaligned",
    "uninitialised",
    "race",
    "barrier-divergence",
    "early-return",
    "simd-divergence",
    "simd-return",
    "simd-partial",  # others are elsewhere
    "simd-partial",  # others have returned
    "inactive-lane",
)
_FROM_RENDEZVOUS = _KINDS[
    6:
]  # there the site is line * 256 + column of a barrier or simd operation
_BOTH_WAIT = (6, 8, 10)  # there the other party's is, too
_RENDEZVOUS = re.compile(r"(?:threadgroup_barrier|simd\w+|quad_\w+)\b")
_NOBODY = 0xFFFFFFFF
_SIMDGROUP = 1024  # thread numbers from here on mean "simdgroup number - 1024 as a whole"

_SIZES = {
    1: "char uchar bool int8_t uint8_t",
    2: "short ushort half bfloat int16_t uint16_t",
    8: "long ulong",
}
_SIZES[4] = "int uint float int32_t uint32_t atomic_int atomic_uint atomic_float"
_SCALARS = {name: size for size, names in _SIZES.items() for name in names.split()}
_IR_NAMES = {"i8": "char", "i16": "short", "i32": "int", "i64": "long"}

Triple = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Report:
    """One fault; str() of it is the whole message."""

    kind: str  # one of _KINDS
    kernel: str
    file: str
    line: int  # 0 where it has none
    other_line: int  # of the other party, or 0
    slot: int | None  # of the buffer
    thread: Triple  # its position in its threadgroup
    threadgroup: Triple
    count: int  # how often it happened at these lines
    message: str  # without the count

    @property
    def warning(self) -> bool:
        """True where Metal defines what happens, but it is seldom what was meant."""
        return self.kind == "simd-partial"

    def __str__(self) -> str:
        return self.message + (f"\n  ({self.count} times at these lines)" if self.count > 1 else "")


class SourceLines:
    """The text of the lines of a source, through `#line` directives."""

    def __init__(self, source: str, file: str):
        self._text: dict[tuple[str, int], str] = {}
        number = 1
        for text in source.splitlines():
            if mark := re.match(r'\s*#\s*(?:line)?\s*(\d+)(?:\s+"([^"]*)")?', text):
                number, file = int(mark[1]), mark[2] or file
            else:
                self._text[file, number] = text
                number += 1

    def text(self, file: str, line: int) -> str:
        return self._text.get((file, line), "").strip()

    def rendezvous(self, line: int, column: int) -> tuple[str, str] | None:
        """The file that has a barrier or simd operation at this place, and what it is."""
        for (file, number), text in self._text.items():
            if number == line and (word := _RENDEZVOUS.match(text, column - 1)):
                return file, word[0]
        return None


@dataclass(frozen=True, slots=True)
class Scene:
    """What is known of the dispatch that reports are about."""

    kernel: str
    file: str
    params: Sequence[Param]
    group: Triple  # threads per threadgroup
    grid: Triple  # threads
    site: Callable[[int], Site]
    source: SourceLines
    guard: Guard

    def name(self, kind: str, index: int) -> str:
        """ "buffer(0) 'a'" """
        names = [p.name for p in self.params if p.kind == kind and p.index == index]
        return f"{kind}({index})" + (f" '{names[0]}'" if names else "")

    def element(self, slot: int) -> int:
        """Bytes of what a buffer's parameter points at; 0 where its type does not tell."""
        types = [p.type for p in self.params if p.kind == "buffer" and p.index == slot]
        return _element_size(types[0]) if types else 0

    def groups(self) -> Triple:
        x, y, z = (-(-n // g) for n, g in zip(self.grid, self.group, strict=True))
        return x, y, z

    def position(self, thread: int, group: Triple) -> Triple:
        """Where a thread is in its threadgroup (smaller at the edge of the grid)."""
        lane0 = (thread - _SIMDGROUP) * 32
        sizes = zip(self.group, self.grid, group, strict=True)
        edge = tuple(min(size, threads - i * size) for size, threads, i in sizes)
        return _unflatten(thread if thread < _SIMDGROUP else lane0, edge)  # type: ignore[arg-type]


def write(r: Any, scene: Scene, variable: str) -> Report:
    """`r`: a NativeReport; `variable`: the name of its threadgroup variable, if it has one."""
    return _Writer(r, scene, variable).report()


class _Writer:
    def __init__(self, r: Any, scene: Scene, variable: str):
        self.r, self.scene, self.variable = r, scene, variable
        self.kind = _KINDS[r.kind - 1]
        self.operation = ""
        if r.kind - 1 in _BOTH_WAIT:
            self.other = self._rendezvous(r.other.site)
        else:
            self.other = scene.site(r.other.site)
        self.site = (
            self._rendezvous(r.who.site)
            if self.kind in _FROM_RENDEZVOUS
            else scene.site(r.who.site)
        )

    def _rendezvous(self, number: int) -> Site:
        line, column = number // 256, number % 256
        found = self.scene.source.rendezvous(line, column)
        file, self.operation = found or (self.scene.file, "operation")
        return Site(file, line, column, 0, 1, "", ())

    def report(self) -> Report:
        r = self.r
        on_device = (
            self.kind in ("out-of-bounds", "misaligned", "race") and not self._in_threadgroup()
        )
        located = self.scene.guard.locate(r.address) if on_device else None
        lines = [
            f"{self._headline(located)} (kernel '{self.scene.kernel}')",
            *self._party(r.who, self.site, "by "),
        ]
        if r.other.thread != _NOBODY:
            lines += self._party(r.other, self.other, self._role())
        if self.kind == "race":
            lines.append(f"  {self._advice()}")
        group = _unflatten(r.who.group, self.scene.groups())
        return Report(
            self.kind,
            self.scene.kernel,
            self.site.file,
            self.site.line,
            self.other.line if r.other.thread != _NOBODY else 0,
            located[0] if located else None,
            self.scene.position(r.who.thread, group),
            group,
            r.count,
            "\n".join(lines),
        )

    # ---- what ----

    def _in_threadgroup(self) -> bool:
        return self.r.variable.slot != _NOBODY or self.kind in (
            "threadgroup-out-of-bounds",
            "uninitialised",
        )

    def _headline(self, located: tuple[int, int] | None) -> str:
        access = f"{_verb(self.site.what)} of {self.r.size} byte{'s' * (self.r.size != 1)}"
        place = self._in_variable() if self._in_threadgroup() else self._in_buffer(located)
        match self.kind:
            case "out-of-bounds" | "threadgroup-out-of-bounds":
                return f"out of bounds: {access}: {place}"
            case "local-out-of-bounds":
                return "out of bounds: index outside a thread's own array or a program-scope constant"
            case "misaligned":
                need = f"{_metal_type(self.site.type)} needs a multiple of {self.site.align}"
                return f"misaligned: {access}: {place}: the address of {need}"
            case "uninitialised":
                return f"uninitialised: {access} that no thread has written: {place}"
            case "race":
                return f"data race: {access}: {place}"
            case "barrier-divergence":
                return "barrier divergence: threads of one threadgroup wait at different barriers"
            case "early-return":
                return "barrier divergence: some threads returned before this threadgroup_barrier"
            case "simd-divergence":
                return f"simd divergence: {self.operation} without all lanes: some are elsewhere"
            case "simd-return":
                return f"simd divergence: {self.operation} without all lanes: some have returned"
            case "simd-partial":
                lanes = self.r.size.bit_count()
                return f"warning: {self.operation} by {lanes} lanes of a simdgroup only"
            case _:
                lane = self.r.address
                return (
                    f"inactive lane: {self.operation} reads lane {lane}, which takes no part in "
                    "it: the value is undefined"
                )

    def _in_buffer(self, located: tuple[int, int] | None) -> str:
        if located is None:
            return f"address {self.r.address:#x}, in no bound buffer"
        slot, offset = located
        name, size, element = (
            self.scene.name("buffer", slot),
            self.scene.guard.size(slot),
            self.scene.element(slot),
        )
        where = _where(offset, element)
        if offset >= 0 and offset + self.r.size <= size:
            return f"{name}, {where}"
        side = "before its start" if offset < 0 else "past its end"
        length = f"{size // element} elements, " if element else ""
        return f"{name} has {length}{size} bytes; {where} is {side}"

    def _in_variable(self) -> str:
        v, r = self.r.variable, self.r
        if v.slot == _NOBODY:
            return "threadgroup memory, which this kernel has none of"
        name = (
            f"threadgroup variable '{self.variable}'"
            if self.variable
            else self.scene.name("threadgroup", v.slot)
        )
        offset = int(r.address) - v.offset
        vector = re.match(r"<(\d+) x", self.site.type)
        where = _where(offset, r.size // int(vector[1]) if vector else r.size)
        if offset >= 0 and offset + r.size <= v.size:
            return f"{name}, {where}"
        side = "before its start" if offset < 0 else "past its end"
        return f"{name} has {v.size} bytes; {where} is {side}"

    # ---- who ----

    def _party(self, party: Any, site: Site, role: str) -> list[str]:
        group = _unflatten(party.group, self.scene.groups())
        thread = self.scene.position(party.thread, group)
        position = tuple(g * n + t for g, n, t in zip(group, self.scene.group, thread, strict=True))
        who = f"thread {thread}, {position} in the grid"
        if party.thread >= _SIMDGROUP:
            who = f"simdgroup {party.thread - _SIMDGROUP} as a whole"
        lines = [f"  {role}{who}, threadgroup {group}"]
        if site.line:
            source = self.scene.source
            lines.append(f"    {site.file}:{site.line}: {source.text(site.file, site.line)}")
            lines += [
                f"    called from {file}:{line}: {source.text(file, line)}"
                for file, line in site.callers
            ]
        return lines

    def _role(self) -> str:
        if self.kind == "race":
            return f"against the {_verb(self.other.what)} by "
        if self.r.kind - 1 not in _BOTH_WAIT:
            return (
                "returned, after it last touched memory here: " if self.other.line else "returned: "
            )
        return "elsewhere: "

    def _advice(self) -> str:
        r = self.r
        if r.who.group != r.other.group:
            return (
                "threadgroups of one dispatch run in any order: use atomics, or a second dispatch"
            )
        flag = "mem_threadgroup" if self._in_threadgroup() else "mem_device"
        both = _simdgroup(r.who.thread) == _simdgroup(r.other.thread)
        barrier = "simdgroup_barrier or threadgroup_barrier" if both else "threadgroup_barrier"
        return f"no {barrier} with mem_flags::{flag} stands between them"


def _where(offset: int, element: int) -> str:
    if element and offset % element == 0:
        return f"element {offset // element} (byte {offset})"
    return f"byte {offset}"


def _unflatten(index: int, size: Triple) -> Triple:
    return index % size[0], index // size[0] % size[1], index // size[0] // size[1]


def _simdgroup(thread: int) -> int:
    return thread // 32 if thread < _SIMDGROUP else thread - _SIMDGROUP


def _verb(what: int) -> str:
    verb = (
        "read-modify-write" if what & READ and what & WRITE else "write" if what & WRITE else "read"
    )
    return f"{'atomic ' * bool(what & ATOMIC)}{'matrix ' * bool(what & MATRIX)}{verb}"


def _metal_type(ir: str) -> str:
    """ "<4 x float>" -> "float4" """
    vector = re.fullmatch(r"<(\d+) x (\w+)>", ir)
    scalar, length = (vector[2], vector[1]) if vector else (ir, "")
    return _IR_NAMES.get(scalar, scalar or "this type") + length


def _element_size(type_: str) -> int:
    for word in re.findall(r"\w+", type_):
        vector = re.fullmatch(r"(packed_)?(\w+?)([234])", word)
        if word in _SCALARS:
            return _SCALARS[word]
        if vector and vector[2] in _SCALARS:
            padded = vector[3] == "3" and not vector[1]  # a float3 takes the room of a float4
            return _SCALARS[vector[2]] * (4 if padded else int(vector[3]))
    return 0
