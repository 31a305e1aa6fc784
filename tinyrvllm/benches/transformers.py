"""transformers, eager and compiled, and this engine in turn, on the same file."""

import argparse
import contextlib
import importlib.util
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tinyrvllm.benches import common
from tinyrvllm.cli.flags import add_model, model_path
from tinyrvllm.errors import TinyrvllmError

EPILOG = """\
Milliseconds a decode step, each the mean of a run; printed are medians over the rounds. "eager" is
transformers with the cache it has by default, "compiled" with a static cache under torch.compile
("reduce-overhead": CUDA graphs), compiled for each batch size before the first round. It computes in
float16 on cuda and in float32 on cpu, whatever the file has: on cuda a file in F16 is the fair one.
On cpu both take all cores. "ratio" is the better of the two by ours, round by round; "same" says how
many of a sequence's tokens are those of the compiled one, at worst: where random weights put two
tokens side by side, half precision decides.

examples:
  python -m tinyrvllm.bench transformers --shape smollm2-135m:f16 --rounds 5
  python -m tinyrvllm.bench transformers --device cpu --batch 1 --batch 8 --tokens 16

needs: pip install torch transformers accelerate (tried with 2.13, 5.17 and what pip took with them)
"""
NEEDED = ("torch", "transformers", "accelerate")
KINDS = ("eager", "compiled")
MOST_BATCHES = 8  # so many graphs of one function torch.compile keeps; then it runs eager, silently
REST = 0.5  # seconds: threads of the one before spin for a while when they have nothing to do
NAMES_ERROR = re.compile(r"[\w.]+(Error|Exception|Exit|Interrupt)\b")


@dataclass
class Run:
    """One of the three on a batch: a decode step's milliseconds, and each sequence's tokens."""

    ms: float
    tokens: list[list[int]]


Ask = Callable[[str, int], Run]  # "ours" or one of KINDS, and a batch size


@dataclass
class Row:
    """Medians over the rounds; ratio: of the better one of transformers' to ours."""

    batch: int
    eager_ms: float
    compiled_ms: float
    ours_ms: float
    ratio: float
    same: int  # equal tokens at the beginning, in the sequence with the fewest


@contextlib.contextmanager
def peer(command: list[str]) -> Iterator[Ask]:
    """transformers_peer.py as a process, which keeps what it has compiled.

    What it yields raises TinyrvllmError, with the error that the process wrote, if that has ended.
    """
    with (
        tempfile.TemporaryFile("w+", errors="replace") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):

        def ask(kind: str, batch: int) -> Run:
            assert process.stdin and process.stdout
            with contextlib.suppress(BrokenPipeError):  # it has ended, and says why below
                print(kind, batch, file=process.stdin, flush=True)
            for line in process.stdout:
                if line.startswith("{"):
                    return Run(**json.loads(line))
            errors.seek(0)
            said = errors.read().strip().splitlines() or ["no output"]
            why = [line for line in said if NAMES_ERROR.match(line)] or said  # hints may follow it
            raise TinyrvllmError(f"transformers ended with {process.wait()}: {why[-1]}")

        try:
            yield ask
        finally:
            process.kill()
            with contextlib.suppress(BrokenPipeError):  # a question that nobody has read
                process.stdin.close()  # type: ignore[union-attr]


def main(argv: list[str]) -> int:
    parser = common.command("transformers", __doc__, EPILOG)
    add_model(parser)
    common.add_work(parser)
    common.add_batch(parser)
    parser.add_argument(
        "--device", default="cuda", choices=("cuda", "cpu"), help="of both (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds", type=common.positive(), default=3, metavar="N", help="default: %(default)s"
    )
    args = parser.parse_args(argv)
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise TinyrvllmError(f"no package {missing[0]} here: pip install {' '.join(NEEDED)}")
    if args.tokens < 2:
        raise TinyrvllmError("expected --tokens of 2 or more, found 1: no step would be a decode step")
    path, batches = model_path(args), list(dict.fromkeys(args.batch or common.BATCHES))
    if len(batches) > MOST_BATCHES:
        raise TinyrvllmError(f"expected at most {MOST_BATCHES} batch sizes, found {len(batches)}")
    common.progress("loading")
    with peer(peer_command(path, args.device, args.prompt_tokens, args.tokens)) as ask_peer:
        rounds = measure(ask_peer, path, batches, args)
    common.progress("")
    rows = [summary(batch, [r[batch] for r in rounds]) for batch in batches]
    if args.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return 0
    print(f"{path.name}, {args.device}, {args.rounds} rounds; ms a decode step\n")
    head = ("batch", *KINDS, "ours", "ratio", "same")
    lines = [
        (str(r.batch), f"{r.eager_ms:.2f}", f"{r.compiled_ms:.2f}", f"{r.ours_ms:.2f}",
         f"{r.ratio:.2f}", f"{r.same} of {args.tokens}")
        for r in rows
    ]  # fmt: skip
    print(common.table(head, lines))
    return 0


def peer_command(path: Path, device: str, prompt_tokens: int, tokens: int) -> list[str]:
    """The process that transformers runs in."""
    module = "tinyrvllm.benches.transformers_peer"
    return [sys.executable, "-m", module, str(path), device, str(prompt_tokens), str(tokens)]


def measure(
    ask_peer: Ask, path: Path, batches: list[int], args: argparse.Namespace
) -> list[dict[int, dict[str, Run]]]:
    """Each round: what each said of each batch."""
    from tinyrvllm.benches.greedy import Greedy, prompts
    from tinyrvllm.model import load

    model, length = load(path), args.prompt_tokens + args.tokens
    common.check_fits(length, model.config.context_length)
    ours = Greedy(model, args.device, max(batches), length + 1)

    def ask(kind: str, batch: int) -> Run:
        time.sleep(REST)
        if kind in KINDS:
            return ask_peer(kind, batch)
        asked = prompts(0, batch, args.prompt_tokens, model.config.vocab_size)
        done = ours.generate(asked, args.tokens)
        return Run(done.ms_per_step, done.tokens)

    for batch in batches:  # compiles, on both sides
        common.progress(f"warming up: batch {batch}")
        for kind in ("ours", *KINDS):
            ask(kind, batch)
    rounds = []
    for number in range(args.rounds):
        common.progress(f"round {number + 1} of {args.rounds}")
        rounds.append({b: {kind: ask(kind, b) for kind in ("ours", *KINDS)} for b in batches})
    return rounds


def summary(batch: int, rounds: list[dict[str, Run]]) -> Row:
    """Of one batch size."""
    ms = {kind: statistics.median(r[kind].ms for r in rounds) for kind in rounds[0]}
    ratios = [min(r["eager"].ms, r["compiled"].ms) / r["ours"].ms for r in rounds]
    pairs = zip(rounds[0]["ours"].tokens, rounds[0]["compiled"].tokens, strict=True)
    same = min(common.equal_beginning(mine, theirs) for mine, theirs in pairs)
    return Row(batch, ms["eager"], ms["compiled"], ms["ours"], statistics.median(ratios), same)
