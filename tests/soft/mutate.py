"""Mutation of the bridge and the software device: how many wrong lines do the tests catch?

    python -m tests.soft.mutate [--part bridge] [--sample 30] [--seed 0] [--jobs 2]

A mutant is a copy of the package with one change in one place (`mutants.py`). It is caught when a
test of its part fails, or does not end. What does not compile is no mutant; what changes nothing
that anybody could see stands in `equivalent.tsv` with the reason.
"""

import argparse
import csv
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.soft.mutants import Mutant, of_header, of_python
from tests.soft.workshop import Workshop

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Part:
    files: tuple[str, ...]  # globs below tinyrvllm
    tests: tuple[str, ...]  # globs below tests; those first that take least for what they catch
    compiles_alike: bool = False  # a change here leaves compiled kernels as they are


PARTS = {
    "bridge": Part(
        ("mtl/*.py", "mtl/replay/*.py"),
        ("mtl/test_edges.py", "mtl/test_faults.py", "mtl/test_indirect.py", "mtl/test_bridge.py",
         "mtl/test_a*.py", "mtl/test_*.py", "soft/test_broken_hosts.py", "soft/test_languages.py"),
        compiles_alike=True,
    ),
    "double": Part(
        ("soft/objc_double/*.py",),
        ("soft/test_*double*.py", "soft/test_broken_hosts.py", "mtl/test_faults.py",
         "mtl/test_indirect.py", "mtl/test_bridge.py", "mtl/test_argument_buffers.py",
         "mtl/test_recording.py", "soft/test_hazards.py", "soft/test_languages.py"),
        compiles_alike=True,
    ),
    "front end": Part(
        ("soft/msl/*.py",),
        ("soft/test_front_end_*.py", "soft/test_front_end.py", "soft/test_compile_cli.py",
         "soft/test_stdlib_refusals.py", "soft/test_stdlib_language.py", "soft/test_cpu_language.py",
         "soft/test_cpu_kernels.py", "soft/test_call_paths.py", "soft/test_diverging.py",
         "soft/test_stdlib_vectors.py", "soft/test_stdlib_cooperative.py",
         "mtl/test_argument_buffers.py"),
    ),
    "headers": Part(
        ("soft/cpu/runtime.h", "soft/cpu/entry.h", "soft/cpu/engine.cpp", "soft/include/msl/simd_ops.h",
         "soft/include/msl/quad_ops.h", "soft/include/msl/integer.h", "soft/include/msl/pack.h",
         "soft/include/msl/construct.h", "soft/include/msl/relational.h"),
        ("soft/test_cpu_language.py", "soft/test_stdlib_vectors.py", "soft/test_stdlib_simd.py",
         "soft/test_stdlib_integer.py", "soft/test_cpu_kernels.py", "soft/test_stdlib_language.py",
         "soft/test_cpu_builtins.py", "soft/test_cpu_workers.py", "soft/test_compile_cli.py",
         "soft/test_front_end.py", "soft/test_front_end_translation.py", "soft/test_double_checks.py", "soft/test_stdlib_refusals.py", "soft/test_check.py",
         "soft/test_diverging.py", "soft/test_call_paths.py"),
    ),
}  # fmt: skip


def mutants(part: str) -> list[Mutant]:
    """All that this tool can make of a part."""
    package = ROOT / "tinyrvllm"
    files = [f for pattern in PARTS[part].files for f in sorted(package.glob(pattern))]
    made = []
    for file in files:
        changes = of_python if file.suffix == ".py" else of_header
        source, name = file.read_text(encoding="utf-8"), file.relative_to(package).as_posix()
        made += [Mutant(name, *change) for change in changes(source)]
    return made


def sample(part: str, count: int | None, seed: int) -> list[Mutant]:
    """Some of them, or all, in random order: a run that is cut short is a sample too."""
    every = mutants(part)
    random.Random(seed).shuffle(every)
    return every[:count]


def equivalent() -> dict[tuple[str, str], str]:
    """(file, what was changed) -> why nobody could see it."""
    text = Path(__file__).with_name("equivalent.tsv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    return {(row["file"], row["change"]): row["reason"] for row in rows}


def judged(part: str, chosen: Sequence[Mutant], jobs: int) -> Iterator[tuple[Mutant, str]]:
    """Each mutant with its verdict: "caught", "refused", "survived" or "equivalent"."""
    known = equivalent()
    workshop = Workshop(PARTS[part].tests, PARTS[part].compiles_alike, jobs)
    with workshop.folder, ThreadPoolExecutor(jobs) as pool:
        verdicts = pool.map(workshop.judge, chosen)
        for mutant, verdict in zip(chosen, verdicts, strict=True):
            same = verdict == "survived" and (mutant.file, mutant.what) in known
            yield mutant, "equivalent" if same else verdict


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--sample", type=int, help="of each part (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    for part in options.part or PARTS:
        chosen = sample(part, options.sample, options.seed)
        print(f"{part}: {len(mutants(part))} mutants, {len(chosen)} of them:", flush=True)
        counts: Counter[str] = Counter()
        for mutant, verdict in judged(part, chosen, options.jobs):
            counts[verdict] += 1
            print(f"  {verdict:10} {mutant}", flush=True)
        tried = counts["caught"] + counts["survived"]
        print(f"  caught {counts['caught']} of {tried}; {dict(counts)}", flush=True)


if __name__ == "__main__":
    main()
