"""What a report is about: the source's lines, and the dispatch's arguments, sizes and positions."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tinyrvllm.soft.cpu.guard import Guard
from tinyrvllm.soft.cpu.instrument import Site
from tinyrvllm.soft.msl.kernels import Param

SIMDGROUP = 1024  # thread numbers from here on mean "simdgroup number - 1024 as a whole"
COLUMNS = 8192  # runtime.h's
_RENDEZVOUS = re.compile(r"\b(?:threadgroup_barrier|simd\w+|quad_\w+)\b")

_SIZES = {
    1: "char uchar bool int8_t uint8_t",
    2: "short ushort half bfloat int16_t uint16_t",
    8: "long ulong",
}
_SIZES[4] = "int uint float int32_t uint32_t atomic_int atomic_uint atomic_float"
_SCALARS = {name: size for size, names in _SIZES.items() for name in names.split()}

Triple = tuple[int, int, int]


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

    def rendezvous(self, site: int) -> tuple[str, int, str] | None:
        """File and line of the barrier or simd operation at line * COLUMNS + column, and its name."""
        found = None
        for (file, number), text in self._text.items():
            column = site - number * COLUMNS
            if not 0 < column < COLUMNS:
                continue
            if word := _RENDEZVOUS.match(text, column - 1):
                return file, number, word[0]
            for word in _RENDEZVOUS.finditer(text):  # the front end may have moved it to the right
                if word.start() < column:
                    found = file, number, word[0]
        return found


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
        lane0 = (thread - SIMDGROUP) * 32
        sizes = zip(self.group, self.grid, group, strict=True)
        edge = tuple(min(size, threads - i * size) for size, threads, i in sizes)
        return unflatten(thread if thread < SIMDGROUP else lane0, edge)  # type: ignore[arg-type]


def unflatten(index: int, size: Triple) -> Triple:
    return index % size[0], index // size[0] % size[1], index // size[0] // size[1]


def _element_size(type_: str) -> int:
    for word in re.findall(r"\w+", type_):
        vector = re.fullmatch(r"(packed_)?(\w+?)([234])", word)
        if word in _SCALARS:
            return _SCALARS[word]
        if vector and vector[2] in _SCALARS:
            padded = vector[3] == "3" and not vector[1]  # a float3 takes the room of a float4
            return _SCALARS[vector[2]] * (4 if padded else int(vector[3]))
    return 0
