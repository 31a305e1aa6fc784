"""llama.cpp and this engine in turn, on the same file, threads and batch sizes."""

import json
import math
import os
import shutil
import statistics
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tinyrvllm.benches import common
from tinyrvllm.cli.flags import add_model, model_path
from tinyrvllm.errors import TinyrvllmError

if TYPE_CHECKING:
    from tinyrvllm.benches.greedy import Greedy
    from tinyrvllm.model import Model

EPILOG = """\
Each round runs llama-bench (a prompt of --prompt-tokens) and llama-batched-bench (--tokens for each
of --batch sequences that have 16 already), then the same work here. Printed are medians over the
rounds, and the median of each round's ratio, which is what a busy machine disturbs least. Our
weights are loaded and our kernels compiled before the first round; --threads goes to llama.cpp and
to numpy's BLAS. On `cpu`, whose weights are float32, a decode step reads all of them: "of memory" is
our share of the tokens that the memory allows, read in each round by as many threads.

examples:
  python -m tinyrvllm.bench peers --llama-bin llama.cpp/build/bin
  python -m tinyrvllm.bench peers --device metal --batch 1 --batch 8 --rounds 5 --json
"""
BATCHES = (1, 8, 32)
CONTEXT = 16  # tokens that each sequence has before it decodes
READ_BYTES = 256 << 20  # by each thread: more than any cache holds
BLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "OMP_NUM_THREADS")
Rates = dict[str, float]  # what was measured -> tokens per second


@dataclass
class Row:
    """Tokens per second: medians over the rounds, and the median of the rounds' ratios."""

    work: str
    llama_cpp: float
    ours: float
    ratio: float  # ours / theirs
    of_memory: float | None  # ours / what memory allows; of decoding on `cpu`


def main(argv: list[str]) -> int:
    parser = common.command("peers", __doc__, EPILOG)
    add_model(parser)
    common.add_work(parser, tokens=16)
    common.add_batch(parser, BATCHES)
    cores = os.cpu_count() or 1
    add = parser.add_argument
    add("--llama-bin", type=Path, metavar="DIR", help="where llama-bench is (default: the PATH)")
    add("--device", default="cpu", help="where we run (default: %(default)s)")
    add("--threads", type=common.positive(), default=cores, metavar="N", help=f"default: {cores}")
    add("--rounds", type=common.positive(), default=3, metavar="N", help="default: %(default)s")
    args = parser.parse_args(argv)
    tools = find_tools(args.llama_bin)
    path = model_path(args)
    os.environ.update(dict.fromkeys(BLAS_VARIABLES, str(args.threads)))  # before numpy loads
    from tinyrvllm.benches.greedy import Greedy
    from tinyrvllm.model import load

    batches, work = args.batch or list(BATCHES), (args.prompt_tokens, args.tokens)
    length = max(args.prompt_tokens + 1, CONTEXT + args.tokens + 1)
    model = load(path)
    greedy = Greedy(model, args.device, max(batches), length)
    ours(greedy, batches, *work)
    rounds = []
    for number in range(args.rounds):
        common.progress(f"round {number + 1} of {args.rounds}")
        theirs = llama_cpp(tools, path, args.threads, batches, *work)
        most = ceilings(model, batches, args.threads) if args.device == "cpu" else {}
        rounds.append((theirs, ours(greedy, batches, *work), most))
    common.progress("")
    rows = summary(rounds)
    if args.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return 0
    print(f"{path.name}, {args.device}, {args.threads} threads, {args.rounds} rounds\n")
    lines = []
    for r in rows:
        share = "" if r.of_memory is None else f"{r.of_memory:.0%}"
        lines.append((r.work, f"{r.llama_cpp:.1f}", f"{r.ours:.1f}", f"{r.ratio:.2f}", share))
    print(common.table(("tokens/s", "llama.cpp", "ours", "ratio", "of memory"), lines))
    return 0


def find_tools(folder: Path | None) -> tuple[str, str]:
    """llama.cpp's two benchmarks. Raises TinyrvllmError where they are not."""
    names = ("llama-bench", "llama-batched-bench")
    found = [shutil.which(name, path=folder) for name in names]
    if found[0] is None or found[1] is None:
        raise TinyrvllmError(
            f"expected {' and '.join(names)} in {folder or 'the PATH'}: build llama.cpp, and name "
            "its folder with --llama-bin llama.cpp/build/bin"
        )
    return found[0], found[1]


def summary(rounds: list[tuple[Rates, Rates, Rates]]) -> list[Row]:
    """rounds: (theirs, ours, what memory allows) of each."""
    rows = []
    for work in rounds[0][0]:
        theirs, mine = [r[0][work] for r in rounds], [r[1][work] for r in rounds]
        ratio = statistics.median(b / a for a, b in zip(theirs, mine, strict=True))
        shares = [r[1][work] / r[2][work] for r in rounds if work in r[2]]
        of_memory = statistics.median(shares) if shares else None
        medians = statistics.median(theirs), statistics.median(mine)
        rows.append(Row(work, *medians, ratio, of_memory))
    return rows


def ceilings(model: "Model", batches: list[int], threads: int) -> Rates:
    """What memory allows: each step reads every float32 weight once."""
    shapes = model.weights.shapes
    weights = {name for name in shapes if name != "token_embd.weight" or model.config.tied_output}
    seconds = 4 * sum(math.prod(shapes[name]) for name in weights) / read_rate(threads)
    return {f"decode, batch {batch}": batch / seconds for batch in batches}


def read_rate(threads: int) -> float:
    """Bytes a second at which so many threads read memory together: the best of three times."""
    import numpy as np

    arrays = [np.ones(READ_BYTES // 4, np.float32) for _ in range(threads)]
    seconds = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(3):
            start = time.perf_counter()
            list(pool.map(np.max, arrays))
            seconds.append(time.perf_counter() - start)
    return threads * READ_BYTES / min(seconds)


def llama_cpp(
    tools: tuple[str, str], model: Path, threads: int, batches: list[int], prompt: int, tokens: int
) -> Rates:
    """One round of llama.cpp's own benchmarks."""
    common_flags = ["-m", str(model), "-t", str(threads)]
    context = max(batches) * (CONTEXT + tokens)
    prefill = [tools[0], *common_flags, *f"-p {prompt} -n 0 -r 1 -o jsonl".split()]
    decode = [tools[1], *common_flags, *f"-npp {CONTEXT} -ntg {tokens} -c {context}".split()]
    decode += ["-npl", ",".join(map(str, batches)), "--output-format", "jsonl"]
    rates = {f"prefill {prompt}": run(prefill)[0]["avg_ts"]}
    measured = {row["pl"]: row["speed_tg"] for row in run(decode)}
    if missing := set(batches) - measured.keys():
        raise TinyrvllmError(f"{' '.join(decode)} printed no figures for batch {missing}")
    return rates | {f"decode, batch {batch}": measured[batch] for batch in batches}


def run(command: list[str]) -> list[dict[str, float]]:
    """The JSON lines that a program prints. Raises TinyrvllmError where it fails."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace")
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not rows:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise TinyrvllmError(f"{' '.join(command)} failed with {done.returncode}: {last}")
    return rows


def ours(greedy: "Greedy", batches: list[int], prompt: int, tokens: int) -> Rates:
    """One round of the same work here."""
    from tinyrvllm.benches.greedy import prompt as random_prompt

    def prompts(count: int, length: int) -> list[list[int]]:
        return [random_prompt(0, i, length, greedy.vocab_size) for i in range(count)]

    alone = greedy.generate(prompts(1, prompt), new_tokens=1)
    rates = {f"prefill {prompt}": prompt / alone.prefill_seconds[0]}
    for batch in batches:
        run = greedy.generate(prompts(batch, CONTEXT), new_tokens=tokens + 1)
        rates[f"decode, batch {batch}"] = batch * tokens / sum(run.step_seconds)
    return rates
