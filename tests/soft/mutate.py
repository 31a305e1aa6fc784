"""Mutation of the bridge and the software device: how many wrong lines do the tests catch?

    python -m tests.soft.mutate [--part bridge] [--sample 30] [--seed 0] [--jobs 2]

A mutant is a copy of the package with one change in one place: a comparison moved or turned, a
condition negated, a number off by one, two arguments swapped, a call or a result dropped. It is
caught when a test of its part fails, or does not end. Changes that nobody can see are not made:
texts of errors, annotations, type checks, numbers of a printed table. What does not compile is no mutant.
"""

import argparse
import ast
import copy
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CPU_SECONDS = 400  # of a mutant's tests, which take 10 to 60; a turned comparison may loop for ever


@dataclass(frozen=True)
class Part:
    files: tuple[str, ...]  # globs below tinyrvllm
    tests: tuple[str, ...]  # first those that catch most
    compiles_alike: bool = False  # a change here leaves compiled kernels as they are


PARTS = {
    "bridge": Part(
        ("mtl/objc.py", "mtl/buffer.py", "mtl/library.py", "mtl/command.py", "mtl/indirect.py",
         "mtl/recording.py", "mtl/device.py"),
        ("tests/mtl/test_bridge.py", "tests/mtl/test_faults.py", "tests/mtl/test_indirect.py",
         "tests/mtl/test_recording.py", "tests/mtl/test_argument_buffers.py", "tests/mtl/test_api.py",
         "tests/mtl/test_profile.py", "tests/soft/test_languages.py"),
        compiles_alike=True,
    ),
    "double": Part(
        ("soft/objc_double/*.py",),
        ("tests/mtl/test_bridge.py", "tests/soft/test_objc_double.py", "tests/soft/test_hazards.py",
         "tests/soft/test_languages.py", "tests/soft/test_broken_hosts.py", "tests/mtl/test_faults.py",
         "tests/mtl/test_argument_buffers.py", "tests/mtl/test_indirect.py"),
        compiles_alike=True,
    ),
    "front end": Part(
        ("soft/msl/*.py",),
        ("tests/soft/test_front_end.py", "tests/soft/test_stdlib_language.py",
         "tests/soft/test_diverging.py", "tests/soft/test_compile_cli.py",
         "tests/soft/test_call_paths.py", "tests/soft/test_stdlib_vectors.py",
         "tests/soft/test_stdlib_refusals.py", "tests/soft/test_cpu_kernels.py"),
    ),
    "headers": Part(
        ("soft/cpu/runtime.h", "soft/cpu/entry.h", "soft/cpu/engine.cpp", "soft/include/msl/simd_ops.h",
         "soft/include/msl/quad_ops.h", "soft/include/msl/integer.h", "soft/include/msl/pack.h",
         "soft/include/msl/construct.h", "soft/include/msl/relational.h"),
        ("tests/soft/test_cpu_language.py", "tests/soft/test_stdlib_simd.py",
         "tests/soft/test_stdlib_vectors.py", "tests/soft/test_stdlib_integer.py",
         "tests/soft/test_diverging.py", "tests/soft/test_cpu_kernels.py",
         "tests/soft/test_call_paths.py", "tests/soft/test_cpu_workers.py"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    part: str
    file: str  # below tinyrvllm
    line: int
    what: str
    text: str  # of the whole changed file

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


def mutants(part: str) -> list[Mutant]:
    """All that this tool can make of a part."""
    package = ROOT / "tinyrvllm"
    files = [f for pattern in PARTS[part].files for f in sorted(package.glob(pattern))]
    made = []
    for file in files:
        changes = of_python if file.suffix == ".py" else of_header
        source, name = file.read_text(encoding="utf-8"), str(file.relative_to(package))
        made += [Mutant(part, name, *change) for change in changes(source)]
    return made


# ---- Python

_TURNED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult}


def of_python(source: str) -> Iterator[tuple[int, str, str]]:
    """(line, what was changed, the new text) for each change."""
    tree = ast.parse(source)
    for number, node in enumerate(ast.walk(tree)):
        node.number = number  # type: ignore[attr-defined]
    for node in _visible(tree):
        for what, change in _changes(node):
            changed = copy.deepcopy(tree)
            target = next(n for n in ast.walk(changed) if n.number == node.number)  # type: ignore[attr-defined]
            change(target)
            text = ast.unparse(ast.fix_missing_locations(changed))
            if text != ast.unparse(tree):
                yield node.lineno, f"{what}: {ast.unparse(node).splitlines()[0][:60]}", text  # type: ignore[attr-defined]


def _visible(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes whose change a caller can see: no texts, types, imports or messages of errors."""
    for name, child in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases"):
            continue
        for item in child if isinstance(child, list) else [child]:
            hidden = (ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Raise, ast.Assert)
            if not isinstance(item, ast.AST) or isinstance(item, hidden):
                continue
            if isinstance(item, ast.If) and ast.unparse(item.test) == "TYPE_CHECKING":
                continue
            yield item
            yield from _visible(item)


def _changes(node: ast.AST) -> Iterator[tuple[str, object]]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in _TURNED:
            yield "turned", lambda n: n.ops.__setitem__(0, _TURNED[type(n.ops[0])]())
        case ast.BoolOp():
            other = ast.Or if isinstance(node.op, ast.And) else ast.And
            yield "and/or", lambda n: setattr(n, "op", other())
        case ast.BinOp() if type(node.op) in _ARITHMETIC:
            yield "arithmetic", lambda n: setattr(n, "op", _ARITHMETIC[type(n.op)]())
        case ast.Constant(value=bool()):
            yield "other truth", lambda n: setattr(n, "value", not n.value)
        case ast.Constant(value=int()):
            yield "one more", lambda n: setattr(n, "value", n.value + 1)
        case ast.If() | ast.While():
            yield "negated", lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))
        case ast.Expr(value=ast.Call()):
            yield "dropped", lambda n: setattr(n, "value", ast.Constant(None))
        case ast.Return(value=value) if value is not None:
            yield "nothing returned", lambda n: setattr(n, "value", ast.Constant(None))
        case ast.Call(args=[_, _, *_], keywords=[]):
            yield "swapped", lambda n: n.args.__setitem__(slice(0, 2), n.args[1::-1])


# ---- C++

_RULES = (
    (r" < ", " <= "), (r" <= ", " < "), (r" == ", " != "), (r" != ", " == "), (r" \+ ", " - "),
    (r" - ", " + "), (r" & ", " | "), (r" \| ", " & "), (r" && ", " || "), (r" >> ", " << "),
    (r"(?<![\w.])(\d+)(?=u?\b[^\w.])", lambda m: str(int(m[1]) + 1)),
    (r"^  +[\w>.\[\]-]+ [|&]?= [^;]*;$", ";"),
)  # fmt: skip


def of_header(source: str) -> Iterator[tuple[int, str, str]]:
    lines = source.split("\n")
    for number, line in enumerate(lines):
        code = line.split("//")[0].rstrip("\\ ")
        if not code.strip() or code.startswith("#") or "static_assert" in code or '"' in code:
            continue
        for pattern, new in _RULES:
            for match in re.finditer(pattern, code):
                changed = code[: match.start()] + re.sub(pattern, new, match[0] + " ")[: -1 or None]
                changed = changed + line[match.end() :]
                text = "\n".join([*lines[:number], changed, *lines[number + 1 :]])
                yield number + 1, f"{match[0].strip()} in {code.strip()[:60]}", text


# ---- the verdict


def judge(mutant: Mutant) -> str:
    """ "caught", "refused" (it does not compile) or "survived"."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        place = Path(folder)
        ignore = shutil.ignore_patterns("__pycache__")
        for name in ("tinyrvllm", "tests"):
            shutil.copytree(ROOT / name, place / name, ignore=ignore)
        shutil.copy(ROOT / "pyproject.toml", place)
        (place / "tinyrvllm" / mutant.file).write_text(mutant.text, encoding="utf-8")
        part = PARTS[mutant.part]
        environment = {"PYTHONPATH": folder, "OPENBLAS_NUM_THREADS": "1"}
        if not part.compiles_alike:
            environment["TINYRVLLM_CACHE"] = str(place / "cache")
        if mutant.file.endswith((".h", ".cpp")) and not _compiles(place, environment):
            return "refused"
        return "survived" if _passes(place, part.tests, environment) else "caught"


def _compiles(place: Path, environment: dict[str, str]) -> bool:
    code = "from tinyrvllm.soft.cpu import build, native; build._header(build.LEAD); native.engine(False)"
    return _run([sys.executable, "-c", code], place, environment) == 0


def _passes(place: Path, tests: tuple[str, ...], environment: dict[str, str]) -> bool:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not long"]
    # what judges changes to the bridge by itself, and what is slow and no judge
    unwanted = "not changed_bridge and not killed and not two_processes"
    return _run([*command, "-k", unwanted, *tests], place, environment) == 0


def _run(command: list[str], place: Path, environment: dict[str, str]) -> int:
    import os

    done = subprocess.run(
        command, cwd=place, env=os.environ | environment, capture_output=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS)),
    )  # fmt: skip
    return done.returncode


def sample(part: str, count: int, seed: int) -> list[Mutant]:
    every = mutants(part)
    return random.Random(seed).sample(every, min(count, len(every)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--sample", type=int, default=30, help="of each part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    for part in options.part or PARTS:
        chosen = sample(part, options.sample, options.seed)
        print(f"{part}: {len(mutants(part))} mutants, {len(chosen)} of them:", flush=True)
        counts: Counter[str] = Counter()
        with ThreadPoolExecutor(options.jobs) as pool:
            for mutant, verdict in zip(chosen, pool.map(judge, chosen), strict=True):
                counts[verdict] += 1
                print(f"  {verdict:8} {mutant}", flush=True)
        tried = counts["caught"] + counts["survived"]
        print(f"  caught {counts['caught']} of {tried}; {counts['refused']} do not compile", flush=True)


if __name__ == "__main__":
    main()
