"""python -m tinyrvllm.soft.run file.metal kernel: run one kernel with no host code at all.

    python -m tinyrvllm.soft.run add.metal add --grid 1000 --group 64 \\
        --buffer a=f32:random:1000 --buffer b=f32:ones:1000 --buffer c=f32:zeros:1000 \\
        --buffer n=u32:1000

A buffer is NAME=TYPE:FILL:COUNT, NAME=TYPE:VALUE,VALUE,... or NAME=file.npy, where NAME is the
kernel's own name for it or its slot.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tinyrvllm.soft.compile import add_source_options
from tinyrvllm.soft.cpu.execute import Dispatch, Size, run
from tinyrvllm.soft.cpu.following import follow, table
from tinyrvllm.soft.cpu.library import KernelInfo, SoftLibrary, compile_library
from tinyrvllm.soft.msl import MSLError, diagnostics

TYPES = {
    "f32": np.float32, "f16": np.float16, "u8": np.uint8, "i8": np.int8, "u16": np.uint16,
    "i16": np.int16, "u32": np.uint32, "i32": np.int32, "u64": np.uint64, "i64": np.int64,
}  # fmt: skip
SHOWN = 8  # elements of a buffer that are printed

Array = np.ndarray


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0: it ran; 1: it did not, or --check found something; 2: bad command line."""
    options = _parser().parse_args(arguments)
    try:
        library = compile_library(
            options.file.read_text(encoding="utf-8"),
            filename=options.file.name,
            check=options.check,
            follow=options.follow is not None,
            include=[options.file.parent, *options.include],
            defines=options.define,
        )
        info = _kernel_info(library, options.kernel)
        buffers = {_slot(info, "buffer", n): a for n, a in map(buffer, options.buffer)}
        memory = {
            _slot(info, "threadgroup", n): int(b)
            for n, b in (pair.split("=", 1) for pair in options.threadgroup)
        }
        kernel = library.kernel(info.name, dict(map(_constant, options.constant)))
        bound = {slot: (a.ctypes.data, a.nbytes) for slot, a in buffers.items()}
        dispatch = Dispatch(kernel, bound, options.grid, options.group, memory)
        events = [] if options.follow is None else follow(dispatch, options.follow)
        reports = run([dispatch]) if options.follow is None else []
    except MSLError as error:
        print(error, file=sys.stderr)
        return 1
    except (OSError, ValueError, KeyError) as error:
        print(error.args[0] if isinstance(error, KeyError) else error, file=sys.stderr)
        return 2
    if events:
        print(table(events, diagnostics.numbered(library.filename, library.source)))
    names = {p.index: p.name for p in info.params if p.kind == "buffer"}
    if options.save:
        options.save.mkdir(parents=True, exist_ok=True)
        for slot, array in buffers.items():
            np.save(options.save / f"{names[slot]}.npy", array)
    if options.json:
        record = {names[slot]: array.tolist() for slot, array in buffers.items()}
        print(json.dumps({"buffers": record, "reports": [str(r) for r in reports]}))
    else:
        for slot, array in buffers.items():
            more = f" ... ({array.size} in all)" if array.size > SHOWN else ""
            print(f"{names[slot]} = {' '.join(map(str, array[:SHOWN]))}{more}")
        for report in reports:
            print(report, file=sys.stderr)
    return 1 if reports else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tinyrvllm.soft.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_source_options(parser)
    parser.add_argument("kernel", help="the kernel's name")
    parser.add_argument(
        "--grid", type=size, required=True, metavar="X[,Y[,Z]]", help="threads in the whole grid"
    )
    parser.add_argument(
        "--group", type=size, required=True, metavar="X[,Y[,Z]]", help="threads in a threadgroup"
    )
    parser.add_argument("--buffer", action="append", default=[], metavar="NAME=TYPE:FILL:COUNT",
        help=f"TYPE is one of {' '.join(TYPES)}; FILL is zeros, ones, arange or random (seeded)",
    )  # fmt: skip
    parser.add_argument(
        "--threadgroup", action="append", default=[], metavar="NAME=BYTES",
        help="the length of a threadgroup memory argument",
    )  # fmt: skip
    parser.add_argument(
        "--constant", action="append", default=[], metavar="INDEX=VALUE",
        help="a function constant",
    )  # fmt: skip
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument(
        "--follow", type=position, metavar="thread=X[,Y[,Z]]",
        help="print what the thread at this position of the grid does, statement by statement",
    )  # fmt: skip
    modes.add_argument("--check", action="store_true", help="report races, bad reads and writes")
    parser.add_argument("--save", type=Path, metavar="DIR", help="write each buffer to NAME.npy")
    parser.add_argument("--json", action="store_true", help="print all buffers as JSON")
    return parser


def size(text: str) -> Size:
    """'64', '8,8' or '8,8,2' as three numbers."""
    numbers = [int(n) for n in text.replace("x", ",").split(",")]
    if not 1 <= len(numbers) <= 3 or min(numbers) < 1:
        raise ValueError(text)
    x, y, z = numbers + [1] * (3 - len(numbers))
    return x, y, z


def position(text: str) -> Size:
    """'thread=37' or 'thread=3,7' as three numbers."""
    numbers = [int(n) for n in text.removeprefix("thread=").split(",")]
    x, y, z = numbers + [0] * (3 - len(numbers))
    return x, y, z


def buffer(text: str) -> tuple[str, Array]:
    """NAME=TYPE:FILL:COUNT, NAME=TYPE:VALUES or NAME=file.npy. Raises ValueError."""
    name, _, what = text.partition("=")
    if what.endswith(".npy"):
        return name, np.ascontiguousarray(np.load(what)).reshape(-1)
    dtype, _, rest = what.partition(":")
    fill, _, count = rest.partition(":")
    if dtype not in TYPES or not fill:
        raise ValueError(
            f"--buffer {text}: expected NAME=TYPE:FILL:COUNT, as in a=f32:random:1024, with a type "
            f"of {', '.join(TYPES)}"
        )
    if not count:
        return name, np.array([float(v) for v in fill.split(",")]).astype(TYPES[dtype])
    n = int(count)
    if fill == "random":
        random = np.random.default_rng(0)
        if np.issubdtype(TYPES[dtype], np.floating):
            return name, random.standard_normal(n).astype(TYPES[dtype])
        return name, random.integers(0, 100, n).astype(TYPES[dtype])
    if fill == "arange":
        return name, np.arange(n).astype(TYPES[dtype])
    if fill not in ("zeros", "ones"):
        raise ValueError(f"--buffer {text}: FILL is one of zeros, ones, arange and random")
    return name, np.full(n, fill == "ones", TYPES[dtype])


def _kernel_info(library: SoftLibrary, name: str) -> KernelInfo:
    if name not in library.functions:
        raise ValueError(f"no kernel '{name}'; the file has: {', '.join(library.functions)}")
    return library.functions[name]


def _slot(info: KernelInfo, kind: str, name: str) -> int:
    for p in info.params:
        if p.kind == kind and p.index is not None and name in (p.name, str(p.index)):
            return p.index
    known = ", ".join(p.name for p in info.params if p.kind == kind) or "none"
    raise ValueError(f"kernel '{info.name}' has no {kind} argument '{name}'; it has: {known}")


def _constant(text: str) -> tuple[int, int | float]:
    index, _, value = text.partition("=")
    return int(index), float(value) if "." in value or "e" in value else int(value)


if __name__ == "__main__":
    sys.exit(main())
