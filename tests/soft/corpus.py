"""Shader files of other projects on the software device: how many of their kernels compile.

    python -m tests.soft.corpus [--run] [--json] PATH...

PATH is a checkout of ggml (or llama.cpp), candle or MLX, or a single .metal file. Their code is not
kept here. A kernel counts as compiled when the front end takes it and clang accepts it with
address spaces checked and with its code instantiated; nothing is optimised or linked, because MLX
alone instantiates 16,000. What Metal refuses only when a pipeline is made (threadgroup memory over
32 KB) does not count against a kernel. A file whose includes do not resolve (Apple's frameworks) is
named and not counted. With --run, the kernels of corpus_runs.py that are found are compiled to
machine code and compared with numpy.
"""

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tinyrvllm.soft.cpu import build, compiler
from tinyrvllm.soft.msl import MSLError, diagnostics
from tinyrvllm.soft.msl.constants import as_macros
from tinyrvllm.soft.msl.preprocess import preprocess
from tinyrvllm.soft.msl.translate import KernelUnit, Unit, translate

ROUNDS = 12  # of taking out the kernels that fail, until the rest compiles
# A kernel's threadgroup memory is counted, and held to 32 KB, when its pipeline is made: not here.
ONE_KERNEL = """
#undef MSL_STATIC_BYTES
#define MSL_STATIC_BYTES(kernel, count)
#undef MSL_THREADGROUP
#define MSL_THREADGROUP(name, T, K) auto &name = *(T *)(msl::arena()->memory)
"""
KERNEL = re.compile(r"\bkernel\s+(?:void|auto)\b|\bhost_name\s*\(")


@dataclass
class FileResult:
    path: str
    kernels: int = 0
    failed: dict[str, str] = field(default_factory=dict)  # kernel -> first diagnostic
    skipped: str = ""  # why the file is not counted


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--run", action="store_true", help="also run known kernels against numpy")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    files = [f for path in options.paths for f in metal_files(path)]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda pair: check_file(*pair), files))
    if options.json:
        print(json.dumps([vars(r) for r in results], indent=1))
    else:
        report(results)
    broken = 0
    if options.run:
        from tests.soft import corpus_runs

        broken = corpus_runs.run_all(files)
    return 1 if broken else 0


def metal_files(path: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Each .metal file with its include folders: its own and those above, up to the checkout."""
    for file in sorted(path.rglob("*.metal")) if path.is_dir() else [path]:
        folders = [file.parent]
        while path.is_dir() and folders[-1] != path:
            folders.append(folders[-1].parent)
        yield file, folders


def check_file(path: Path, folders: list[Path]) -> FileResult:
    result = FileResult(str(path))
    try:
        text = preprocess(path.read_text(), path.name, compiler.find().preprocess, folders)
    except MSLError as error:
        missing = re.search(r"'([^']*)' file not found", str(error))
        result.skipped = f"includes {missing[1]}" if missing else str(error).splitlines()[0]
        return result
    try:
        unit = translate(text, path.name)
    except MSLError as error:
        result.kernels = max(1, len(KERNEL.findall(text)))
        result.failed = dict.fromkeys(map(str, range(result.kernels)), str(error).splitlines()[0])
        return result
    result.kernels = len(unit.kernels)
    spaces = diagnostics.address_space_errors(build.syntax_diagnostics(unit, build.SPACES))
    spaces = [d for d in spaces if not d.at_pipeline]
    if spaces:
        result.failed = dict.fromkeys(unit.kernels, f"address spaces: {spaces[0].message}")
    else:
        result.failed = failing(unit)
    return result


def failing(unit: Unit) -> dict[str, str]:
    """The kernels that clang refuses. A template's error shows at its first user only: take the
    kernels that fail out, and look again."""
    left, failed = dict(unit.kernels), dict[str, str]()
    for _ in range(ROUNDS):
        if not left:
            break
        found = refused(unit, left)
        if not found:
            return failed
        failed |= found
        left = {name: k for name, k in left.items() if name not in found}
    return failed | dict.fromkeys(left, "too many different errors in this file")


def refused(unit: Unit, kernels: dict[str, KernelUnit]) -> dict[str, str]:
    """One syntax-only compilation with an entry for each kernel; errors by the kernel they hit."""
    entries = "\n".join(
        f"static auto msl_e{n} = &{entry(k)};" for n, k in enumerate(kernels.values())
    )
    two_sides = any(build.has_two_sides(unit, k) for k in kernels.values())
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "corpus.cpp"
        values = as_macros(unit.constants, {}) + ONE_KERNEL
        source.write_text(build._program(unit, values, entries), encoding="utf-8")
        for lead in (build.LEAD, build.REST)[: 1 + two_sides]:
            flags = (*lead, *build._mode_flags(unit))
            header = build._including(build._header(flags))
            stderr = compiler.find().check_syntax(source, [*flags, *header, "-ferror-limit=0"])
            failed = attribute(stderr, list(kernels)) | failed
    return failed


def entry(kernel: KernelUnit) -> str:
    text = build._entry(kernel, "rest", True)  # MSL_ENTRY(rest, msl::fiber_entry<...>)
    return text[text.index("msl::") : text.rindex(")")]


def attribute(stderr: str, names: list[str]) -> dict[str, str]:
    """Kernel -> error: by the note that says which entry asked for the code; else all kernels."""
    failed: dict[str, str] = {}
    for block in re.split(r"\n(?=\S[^\n]*: (?:fatal )?error: )", "\n" + stderr):
        first = next((x for x in block.splitlines() if "error: " in x), None)
        if first is None:
            continue
        hit = {int(n) for n in re.findall(r"msl_entries:(\d+):", block)}
        for name in [names[n - 1] for n in hit if n <= len(names)] or names:
            failed.setdefault(name, first)
    return failed


def report(results: list[FileResult]) -> None:
    counted = [r for r in results if not r.skipped]
    for r in results:
        if r.skipped:
            print(f"{r.path}: not counted, {r.skipped}")
            continue
        print(f"{r.path}: {r.kernels} kernels, {r.kernels - len(r.failed)} compile")
        reasons: dict[str, list[str]] = {}
        for name, reason in r.failed.items():
            reasons.setdefault(re.sub(r"^[^:]*:\d+:\d+: ", "", reason), []).append(name)
        for names in sorted(reasons.values(), key=len, reverse=True):
            print(f"    {len(names)}, first {names[0]}: {r.failed[names[0]]}")
    total, good = sum(r.kernels for r in counted), sum(r.kernels - len(r.failed) for r in counted)
    if total:
        print(f"{good} of {total} kernels compile: {100 * good / total:.2f} %")


if __name__ == "__main__":
    sys.exit(main())
