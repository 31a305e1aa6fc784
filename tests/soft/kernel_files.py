"""Kernels in .metal files that say themselves how to run them and what is wrong with them.

    // run: grid=64 group=32 a:float[60] n:uint=60 b:a@1 scratch:threadgroup[128]

above a kernel gives threads of the grid and of a threadgroup (`x,y,z`), and a value for each of its
memory arguments: `a:float[60]` a buffer of 60 floats 0, 1, 2 ...; `=v` all elements v (and without
[n] just one); `@k` bound from element k on; `b:a` the buffer of a once more;
`scratch:threadgroup[128]` so many bytes. `// BUG: kind` ends each line that a report of this kind
may name.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tinyrvllm.soft.cpu.execute import Dispatch, run
from tinyrvllm.soft.cpu.library import SoftKernel
from tinyrvllm.soft.cpu.report import Report

_ARGUMENT = re.compile(r"(\w+):(\w+)(?:\[(\d+)\])?(?:@(\d+))?(?:=(-?\d+))?")
_KERNEL = re.compile(r"kernel void (\w+)\(")
_TYPES = {"float": "f4", "half": "f2", "char": "i1", "short": "i2", "int": "i4", "long": "i8"}
_TYPES |= {"uchar": "u1", "ushort": "u2", "uint": "u4", "ulong": "u8"}

Size = tuple[int, int, int]


@dataclass(frozen=True)
class Case:
    """One kernel of a file."""

    path: Path
    kernel: str
    how: str  # what follows "// run:"
    bugs: dict[str, set[int]]  # kind -> lines

    def __str__(self) -> str:
        return f"{self.path.stem}-{self.kernel}"


@dataclass
class Outcome:
    reports: list[Report]
    memory: bytes  # of all buffers


def cases(folder: Path) -> Iterator[Case]:
    """The kernels of all files in a folder."""
    for path in sorted(folder.glob("*.metal")):
        how, name, bugs = "", "", {}
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.startswith("// run: "):
                how = line.removeprefix("// run: ")
            elif found := _KERNEL.match(line):
                name = found[1]
            elif line == "}" and name:
                yield Case(path, name, how, bugs)
                name, bugs = "", {}
            if bug := re.search(r"// BUG: ([\w-]+)$", line):
                bugs.setdefault(bug[1], set()).add(number)


def run_case(case: Case, kernel: SoftKernel, order: int = 0, threads: int = 1) -> Outcome:
    """Runs it with fresh buffers, which lie one right behind the other in memory."""
    sizes = dict(re.findall(r"(grid|group)=([\d,]+)", case.how))
    arrays, starts, threadgroup = _arguments(case.how)
    memory = np.zeros(sum(a.nbytes + -a.nbytes % 32 for a in arrays.values()) + 64, np.uint8)
    start = offset = -memory.ctypes.data % 32
    addresses: dict[str, tuple[int, int]] = {}
    for name, array in arrays.items():
        memory[offset : offset + array.nbytes] = array.view(np.uint8)
        addresses[name] = (memory.ctypes.data + offset, array.nbytes)
        offset += array.nbytes + -array.nbytes % 32
    buffers, lengths = {}, {}
    for p in kernel.info.params:
        if p.kind == "buffer" and p.index is not None:
            of, first = starts[p.name]
            address, size = addresses[of]
            buffers[p.index] = (address + first, size - first)
        elif p.kind == "threadgroup" and p.index is not None:
            lengths[p.index] = threadgroup[p.name]
    grid, group = _size(sizes["grid"]), _size(sizes["group"])
    reports = run([Dispatch(kernel, buffers, grid, group, lengths, order)], threads)
    return Outcome(reports, memory[start:offset].tobytes())


def _arguments(
    how: str,
) -> tuple[dict[str, np.ndarray], dict[str, tuple[str, int]], dict[str, int]]:
    """Buffers by name; for each argument its buffer's name and first byte; threadgroup lengths."""
    arrays: dict[str, np.ndarray] = {}
    starts: dict[str, tuple[str, int]] = {}
    threadgroup: dict[str, int] = {}
    for name, kind, count, start, value in _ARGUMENT.findall(how):
        if kind == "threadgroup":
            threadgroup[name] = int(count)
            continue
        of = name if kind in _TYPES else kind
        if kind in _TYPES:
            elements = int(count or 1)
            numbers = np.full(elements, int(value)) if value else np.arange(elements) % 128
            arrays[name] = numbers.astype(_TYPES[kind])
        starts[name] = (of, int(start or 0) * arrays[of].itemsize)
    return arrays, starts, threadgroup


def _size(text: str) -> Size:
    x, y, z, *_ = [*map(int, text.split(",")), 1, 1]
    return x, y, z
