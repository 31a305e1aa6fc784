"""python -m tinyrvllm.soft.compile file.metal: compile Metal source on any machine.

Lists the kernels of an MSL file with their arguments and limits, or its diagnostics as Apple's
compiler would word them. Nothing is run, and no GPU is needed.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tinyrvllm.soft.cpu.library import SoftKernel, SoftLibrary, compile_library
from tinyrvllm.soft.cpu.workers import default_threads
from tinyrvllm.soft.msl import MSLError


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0: it compiles; 1: it does not; 2: there is no such file."""
    options = _parser().parse_args(arguments)
    try:
        source = options.file.read_text(encoding="utf-8")
    except OSError as error:
        print(f"cannot read {options.file}: {error.strerror}", file=sys.stderr)
        return 2
    try:
        library = compile_library(
            source,
            filename=options.file.name,
            include=[options.file.parent, *options.include],
            defines=options.define,
        )
        kernels = _compile_all(library)
    except MSLError as error:
        if options.json:
            print(json.dumps({"errors": str(error).splitlines()}, indent=2))
        else:
            print(error, file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps({"kernels": [_record(k) for k in kernels]}, indent=2))
    else:
        for kernel in kernels:
            print(_table(kernel))
    return 0


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """The options that say what the source is; soft.run has the same."""
    parser.add_argument("file", type=Path, help="an MSL file")
    parser.add_argument(
        "-I", dest="include", type=Path, action="append", default=[], metavar="DIR",
        help="a folder of headers that the file includes (its own folder is searched first)",
    )  # fmt: skip
    parser.add_argument(
        "-D", dest="define", action="append", default=[], metavar="NAME=VALUE",
        help="a macro for the preprocessor",
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tinyrvllm.soft.compile",
        description="Compile Metal source for this CPU and list its kernels, or its mistakes.",
    )
    add_source_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _compile_all(library: SoftLibrary) -> list[SoftKernel]:
    """Machine code for every kernel, with function constants 0 where they have no default."""

    def one(name: str) -> SoftKernel:
        return library.kernel(name, dict.fromkeys(library.functions[name].function_constants, 0))

    with ThreadPoolExecutor(default_threads()) as pool:
        return list(pool.map(one, library.functions))


def _record(kernel: SoftKernel) -> dict[str, object]:
    return dataclasses.asdict(kernel.info) | {
        "max_total_threads": kernel.max_total_threads,
        "static_threadgroup_bytes": kernel.static_threadgroup_bytes,
    }


def _table(kernel: SoftKernel) -> str:
    info = kernel.info
    lines = [
        f"{info.name}  ({info.file}:{info.line})",
        (
            f"    at most {kernel.max_total_threads} threads in a threadgroup, "
            f"{kernel.static_threadgroup_bytes} bytes of static threadgroup memory"
        ),
    ]
    for p in info.params:
        slot = p.kind if p.index is None else f"{p.kind}({p.index})"
        access = f"  [{p.access}]" if p.access else ""
        presence = f"  [only if {p.function_constant}]" if p.function_constant else ""
        lines.append(f"    {slot:34} {p.type} {p.name}{access}{presence}")
    for index, constant in info.function_constants.items():
        slot, needed = f"function_constant({index})", "" if constant.required else "  [optional]"
        lines.append(f"    {slot:34} {constant.type} {constant.name}{needed}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
