"""Mutation of our own kernels: how many broken ones do the tests catch?

    python -m tests.kernels.mutate [--shader gemm.metal] [--only barrier] [--sample 60] [--seed 0]

A mutant is one shader with one change: a barrier dropped, a bound moved by one (< to <=, <= to <,
>= to >), a stride or size off by one. It is caught when a case of the shape table fails with it on
`soft` or, where all pass there, on `soft:check`. Each mutant runs in a process of its own, since a
moved bound may loop for ever.

survivors.tsv says of each survivor why its change changes nothing; one that is not in there is a
gap in the tests, and the command then ends with status 1.
"""

import argparse
import dataclasses
import functools
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import tinyrvllm
from tests.kernels.test_table import CHECKED
from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.kernels import shapes
from tinyrvllm.kernels.cases import Case, prepare
from tinyrvllm.kernels.launch import run
from tinyrvllm.mtl import open_device

SHADERS = Path(tinyrvllm.__file__).parent / "shaders"
EXPLAINED = Path(__file__).with_name("survivors.tsv")  # file, rule, changed line, why
VERDICTS = {0: "survived", 3: "wrong", 4: "reported", 5: "refused"}  # by exit status
HUNG = {getattr(signal, name, 0) for name in ("SIGXCPU", "SIGKILL")} - {0}
CPU_SECONDS = 120  # for one mutant; its cases take seconds, a moved bound may take for ever
KERNELS = {  # file of a shader -> kernels of the table that run it
    "argmax.metal": ["argmax"], "argmax.h": ["argmax"], "attention.h": ["attend_one", "attend_tile"],
    "attention_decode.metal": ["attend_one"], "attention_naive.metal": ["naive"],
    "attention_prefill.metal": ["attend_tile", "attend_wide"],
    "arrange.metal": ["arrange"], "conv.metal": ["short_conv"],
    "attention_spread.metal": ["attend_spread", "attend_unrotated"],
    "common.h": ["rmsnorm", "softmax", "gate"], "embedding.metal": ["embed"],
    "elementwise.metal": ["add", "gate", "softcap", "copy", "to_half", "to_float", "multiply_adds"],
    "gemm.h": ["gemm"], "gemm.metal": ["gemm"], "gemm_tensor.metal": ["gemm_tensor"],
    "ksplit.metal": ["ksplit"], "kv_cache.h": ["rope", "attend_one"],
    "matmul.h": ["matvec", "gemm"], "matvec.metal": ["matvec"], "quant.h": ["embed", "matvec"],
    "reduce.metal": ["rmsnorm", "softmax"], "rope.metal": ["rope"],
    "rope.h": ["rope", "attend_unrotated"], "step.metal": ["advance"],
    "top_k.metal": ["top_k"],
}  # fmt: skip
SIZE = (
    r"\b(a\.\w+_stride|a\.row_bytes|a\.columns|a\.channels|a\.kv_heads|a\.inputs|a\.keys|D4|"
    r"BLOCK_SIZE|HEAD_DIM|\w*STRIDE|stride|width)\b(?=[ )\];])"
)
RULES = {  # what to look for, what to put there
    "barrier": (r"\b(threadgroup|simdgroup)_barrier\((?!mem_flags::mem_none)[^;]*;", ";"),
    "bound": (r" < (?=[\w(])", " <= "),
    "edge": (r" ([<>])= (?=[\w(])", r" \1 "),
    "stride": (SIZE, r"(\1 + 1)"),
}
FIRST = 16  # cases of a kernel that run first, spread over its part of the table


@dataclasses.dataclass(frozen=True)
class Mutant:
    file: str
    rule: str
    line: int  # from 1
    column: int
    text: str  # the changed line

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.text.strip()}"

    @property
    def why_it_survives(self) -> str:
        """Why the change changes nothing; empty if nobody has said."""
        return explanations().get((self.file, self.rule, self.text.strip()), "")


@functools.cache
def explanations() -> dict[tuple[str, str, str], str]:
    """(file, rule, changed line) -> why it survives."""
    lines = EXPLAINED.read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    return {(file, rule, text): why for file, rule, text, why in rows}


def mutants(shader: str) -> list[Mutant]:
    """Every change that a rule makes to a line of code of a file."""
    found = []
    text = (SHADERS / shader).read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), start=1):
        code = line.split("//")[0]
        if code.lstrip().startswith(("#", "template", "constant", "kernel", "inline")):
            continue
        for rule, (pattern, replacement) in RULES.items():
            for match in re.finditer(pattern, code):
                changed = code[: match.start()] + match.expand(replacement) + code[match.end() :]
                found.append(Mutant(shader, rule, number, match.start(), changed))
    return found


def cases_of(shader: str, device_name: str) -> list[Case]:
    """The table's cases of the shader's kernels, those that are least alike first; on the
    checking device those of `make test`."""
    if device_name == "soft:check":
        return [case for case in CHECKED if case.kernel in KERNELS[shader]]
    first, rest = [], []
    for kernel in KERNELS[shader]:
        cases = [c for c in shapes.TABLE if c.kernel == kernel]
        step = max(1, len(cases) // FIRST)
        first += cases[::step]
        rest += [c for i, c in enumerate(cases) if i % step]
    return first + rest


def survives(shader: str, directory: Path, device_name: str) -> bool:
    """Whether every case passes with the shaders of a directory."""
    with open_device(device_name) as device:
        for case in cases_of(shader, device_name):
            prepared = prepare(case, device, np.random.default_rng(0))
            launches = [
                dataclasses.replace(launch, shader=str(directory / f"{launch.shader}.metal"))
                for launch in prepared.launches
            ]
            run(device, *launches)
            if not prepared.error() <= prepared.tolerance:
                return False
    return True


def status(shader: str, directory: Path) -> int:
    """A key of VERDICTS for the shaders of a directory."""
    for device, caught in (("soft", 3), ("soft:check", 4)):
        try:
            if not survives(shader, directory, device):
                return caught
        except TinyrvllmError as error:  # a compiler's diagnostics, or a report
            return 5 if "error:" in str(error) else caught
    return 0


def judge(mutant: Mutant) -> str:
    """ "wrong", "reported" (soft:check), "hangs", "refused" (does not compile) or "survived"."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "shaders"
        shutil.copytree(SHADERS, directory)
        path = directory / mutant.file
        lines = path.read_text(encoding="utf-8").splitlines()
        lines[mutant.line - 1] = mutant.text
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "tests.kernels.mutate", "--judge", str(directory)]
        done = subprocess.run(
            [*command, "--shader", mutant.file], capture_output=True, text=True, check=False
        )
    if -done.returncode in HUNG:
        return "hangs"
    if done.returncode > 0 and done.returncode not in VERDICTS:
        raise RuntimeError(f"the judge of {mutant} failed:\n{done.stderr}")
    return VERDICTS.get(done.returncode, "wrong")  # otherwise it crashed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shader", action="append", choices=sorted(KERNELS))
    parser.add_argument("--only", choices=sorted(RULES))
    parser.add_argument("--sample", type=int, help="this many, chosen at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--judge", type=Path, help="internal: run one mutant's cases")
    options = parser.parse_args()
    if options.judge:  # by processor time, so that a loaded machine makes no hang of a slow one
        import resource  # Windows has none

        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 10))
        return status(options.shader[0], options.judge)
    chosen = [m for shader in options.shader or KERNELS for m in mutants(shader)]
    chosen = [m for m in chosen if options.only in (None, m.rule)]
    if options.sample and options.sample < len(chosen):
        chosen = random.Random(options.seed).sample(chosen, options.sample)
    verdicts, gaps = Counter[str](), 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for mutant, verdict in zip(chosen, pool.map(judge, chosen), strict=True):
            verdicts[verdict] += 1
            why = mutant.why_it_survives if verdict == "survived" else ""
            gaps += verdict == "survived" and not why
            print(f"{verdict:9} {mutant}" + (f"  [{why}]" if why else ""), flush=True)
    real = len(chosen) - verdicts["refused"]
    caught = real - verdicts["survived"]
    print(f"caught {caught} of {real} mutants that compile ({caught / max(real, 1):.0%})", verdicts)
    print(f"{verdicts['survived'] - gaps} survivors are explained, {gaps} are not")
    return 1 if gaps else 0


if __name__ == "__main__":
    raise SystemExit(main())
