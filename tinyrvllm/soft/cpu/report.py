"""The checking mode's reports: from the native code's numbers to the source's own terms."""

import re
from dataclasses import dataclass
from typing import Any

from tinyrvllm.soft.cpu.instrument import ATOMIC, MATRIX, READ, WRITE, Site
from tinyrvllm.soft.cpu.scene import COLUMNS, SIMDGROUP, Scene, Triple, unflatten

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
# There the site is line * COLUMNS + column of a barrier or simd operation.
_FROM_RENDEZVOUS = _KINDS[6:]
_BOTH_WAIT = (6, 8, 10)  # there the other party's is, too
_NOBODY = 0xFFFFFFFF

_IR_NAMES = {"i8": "char", "i16": "short", "i32": "int", "i64": "long"}


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
        found = self.scene.source.rendezvous(number)
        file, line, self.operation = found or (self.scene.file, number // COLUMNS, "operation")
        return Site(file, line, 0, 0, 1, "", ())

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
        group = unflatten(r.who.group, self.scene.groups())
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
                return (
                    "out of bounds: index outside a thread's own array or a program-scope constant"
                )
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
        group = unflatten(party.group, self.scene.groups())
        thread = self.scene.position(party.thread, group)
        position = tuple(g * n + t for g, n, t in zip(group, self.scene.group, thread, strict=True))
        who = f"thread {thread}, {position} in the grid"
        if party.thread >= SIMDGROUP:
            who = f"simdgroup {party.thread - SIMDGROUP} as a whole"
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


def _simdgroup(thread: int) -> int:
    return thread // 32 if thread < SIMDGROUP else thread - SIMDGROUP


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
