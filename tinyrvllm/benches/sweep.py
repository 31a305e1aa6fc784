"""Tokens per second by batch size and device: the Rust original's table, on this machine."""

import json
import platform
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tinyrvllm.benches import common
from tinyrvllm.benches.greedy import BLOCK_SIZE, Generation, Greedy, fnv1a, prompts
from tinyrvllm.benches.served import serve
from tinyrvllm.cli.flags import add_model, model_path
from tinyrvllm.engine.block_pool import BlockPool
from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.model import Model, load
from tinyrvllm.reports import peak_memory_bytes
from tinyrvllm.runner import DEVICES

EPILOG = """\
Each prompt is fed alone (its seconds are the first token's), then all sequences decode together.
Greedy. One run is discarded, then --runs are measured: mean, and half the range in percent.
tok/s are the generated tokens over all seconds; the checksum is FNV-1a over all tokens, so equal
checksums are equal texts. Peak memory is the process's: give one --device to see it alone.
Then the engine gets the same prompts: the first one, and a step later the others. Served are its
generated tokens over all seconds; pool use is the largest share of the cache's blocks that were
held at a time; prefix hits are the share of the prompts' tokens that were found there.
Ctrl-C shows what was measured until then.

examples:
  python -m tinyrvllm.bench sweep --device cpu --device soft --batch 1 --batch 8 --tokens 16
  python -m tinyrvllm.bench sweep --shape smollm2-360m:q8_0 --device cpu --device metal
  python -m tinyrvllm.bench sweep --device soft --batch 8 --shared-prefix 96
  python -m tinyrvllm.bench sweep --json --plot sweep.png
"""


@dataclass
class Row:
    """One device and batch size; every measurement is (mean, half the range)."""

    device: str
    batch: int
    tokens_per_second: tuple[float, float]
    ms_per_step: tuple[float, float]
    first_token_ms: tuple[float, float]
    prefill_tokens_per_second: tuple[float, float]
    checksum: str
    served_tokens_per_second: float  # by the engine; likewise the next two
    pool_use: float  # 0 to 1
    prefix_hits: float  # 0 to 1
    peak_memory_bytes: int | None
    speed_up: float | None  # of tokens per second, against cpu; None where cpu was not run


def main(argv: list[str]) -> int:
    parser = common.command("sweep", __doc__.splitlines()[0], EPILOG)
    add_model(parser)
    common.add_batch(parser)
    common.add_work(parser)
    common.add_seed(parser)
    is_mac = (sys.platform, platform.machine()) == ("darwin", "arm64")
    default = ["cpu", "metal"] if is_mac else ["cpu"]
    parser.add_argument(
        "--device", action="append", choices=[name for name in DEVICES if name != "auto"],
        help=f"repeatable (default here: {' '.join(default)})",
    )
    parser.add_argument(
        "--runs", type=common.positive(), default=3, metavar="N",
        help="measured runs (default: %(default)s)",
    )
    parser.add_argument(
        "--shared-prefix", type=int, default=0, metavar="N",
        help="tokens with which all prompts begin alike (default: %(default)s)",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="also draw a plot")
    args = parser.parse_args(argv)
    pyplot = import_pyplot() if args.plot else None  # before the minutes of measuring
    path = model_path(args)
    batches = args.batch or list(common.BATCHES)
    rows: list[Row] = []
    model = load(path)
    common.check_fits(args.prompt_tokens + args.tokens, model.config.context_length)
    if not 0 <= args.shared_prefix <= args.prompt_tokens:
        raise TinyrvllmError(
            f"--shared-prefix {args.shared_prefix}: expected 0 to {args.prompt_tokens}, the "
            "length of a prompt"
        )
    rng = args.seed, args.shared_prefix
    status = 0
    try:
        for device in args.device or default:
            work = (args.prompt_tokens, args.tokens, args.runs)
            rows.extend(sweep(model, device, batches, *work, *rng))  # keeps what came before Ctrl-C
    except KeyboardInterrupt:
        if not rows:
            raise
        status = 130
    add_speed_ups(rows)
    common.progress("")
    if args.json:
        settings = {"model": path.name, "prompt_tokens": args.prompt_tokens, "tokens": args.tokens,
                    "runs": args.runs, "seed": args.seed}  # fmt: skip
        print(json.dumps(settings | {"rows": [asdict(row) for row in rows]}, indent=1))
    else:
        print(f"{path.name}: {args.prompt_tokens} + {args.tokens} tokens, {args.runs} runs\n")
        print(as_table(rows))
    if pyplot:
        plot(pyplot, rows, path.name, args.plot)
    return status


def sweep(
    model: Model, device: str, batches: list[int], prompt_tokens: int, tokens: int,
    runs: int, seed: int, shared: int = 0,
) -> Iterator[Row]:  # fmt: skip
    """Measures one device at each batch size."""
    greedy = Greedy(model, device, max(batches), prompt_tokens + tokens)
    for batch in batches:
        texts = prompts(seed, batch, prompt_tokens, greedy.vocab_size, shared)
        measured: list[Generation] = []
        for number in range(runs + 1):
            common.progress(f"{device}, batch {batch}: run {number} of {runs}")
            measured.append(greedy.generate(texts, tokens))
        checksums = {fnv1a(run.tokens) for run in measured}
        if len(checksums) > 1:
            raise TinyrvllmError(
                f"{device} at batch {batch} wrote different tokens in different runs: expected one "
                f"checksum, found {', '.join(sorted(checksums))}"
            )
        del measured[0]  # compiled kernels, dequantised weights
        common.progress(f"{device}, batch {batch}: the engine")
        pool = BlockPool(greedy.num_blocks, BLOCK_SIZE)
        served = serve(model, greedy.runner, pool, texts, tokens)
        yield Row(
            device, batch,
            spread(measured, lambda run: run.tokens_per_second),
            spread(measured, lambda run: run.ms_per_step),
            spread(measured, lambda run: run.first_token_ms),
            spread(measured, lambda run: run.prefill_tokens_per_second),
            checksums.pop(), served.tokens_per_second, served.pool_use, served.prefix_hits,
            peak_memory_bytes(), None,
        )  # fmt: skip


def spread(runs: list[Generation], of: Callable[[Generation], float]) -> tuple[float, float]:
    """(mean, half the range) of a measurement over the runs."""
    values = [of(run) for run in runs]
    return statistics.fmean(values), (max(values) - min(values)) / 2


def add_speed_ups(rows: list[Row]) -> None:
    cpu = {row.batch: row.tokens_per_second[0] for row in rows if row.device == "cpu"}
    for row in rows:
        if row.batch in cpu:
            row.speed_up = row.tokens_per_second[0] / cpu[row.batch]


def as_table(rows: list[Row]) -> str:
    head = ("device", "batch", "tok/s", "±", "ms/step", "first token ms", "prefill tok/s",
            "speed-up", "served tok/s", "pool use", "prefix hits", "peak MB", "checksum")  # fmt: skip
    return common.table(
        head,
        [
            (
                row.device,
                str(row.batch),
                f"{row.tokens_per_second[0]:.1f}",
                f"{row.tokens_per_second[1] / row.tokens_per_second[0]:.0%}",
                f"{row.ms_per_step[0]:.1f}",
                f"{row.first_token_ms[0]:.0f}",
                f"{row.prefill_tokens_per_second[0]:.0f}",
                f"{row.speed_up:.2f}x" if row.speed_up else "-",
                f"{row.served_tokens_per_second:.1f}",
                f"{row.pool_use:.0%}",
                f"{row.prefix_hits:.0%}",
                f"{row.peak_memory_bytes / 1e6:.0f}" if row.peak_memory_bytes else "-",
                row.checksum,
            )
            for row in rows
        ],
    )


def import_pyplot() -> Any:
    """matplotlib without a window. Raises TinyrvllmError where the extra is missing."""
    try:
        import matplotlib
    except ImportError:
        raise TinyrvllmError(
            "--plot needs matplotlib: pip install 'tinyrvllm[plots]'"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def plot(pyplot: Any, rows: list[Row], title: str, path: Path) -> None:
    """Tokens per second over the batch size, a line for each device, with its spread."""
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for device in dict.fromkeys(row.device for row in rows):
        mine = [row for row in rows if row.device == device]
        means, halves = zip(*(row.tokens_per_second for row in mine), strict=True)
        batches = [row.batch for row in mine]
        axes.errorbar(batches, means, halves, marker="o", capsize=3, label=device)
    batches = sorted({row.batch for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.set(xlabel="batch", ylabel="tokens/s", title=title, ylim=(0, None))
    axes.legend()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:  # ValueError: no such image format
        raise TinyrvllmError(f"cannot write the plot {path}: {error}") from error
    finally:
        pyplot.close(figure)
