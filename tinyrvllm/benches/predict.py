"""Milliseconds a token on a chip of Apple's, from its published limits: a claim to falsify."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tinyrvllm import shapes
from tinyrvllm.benches import common
from tinyrvllm.benches.host import decode
from tinyrvllm.benches.null_runtime import NullRuntime
from tinyrvllm.cli.flags import add_model, model_path
from tinyrvllm.kernels.launch import Launch
from tinyrvllm.model import Model, load
from tinyrvllm.mtl import Device
from tinyrvllm.runner.metal import MetalRunner


@dataclass(frozen=True)
class Chip:
    """Limits of a chip's largest version. Apple publishes bandwidth and cores; TFLOP/s is cores x
    128 lanes x 2 x the clock that others have measured."""

    gigabytes_per_second: float
    gpu_cores: int
    teraflops: float  # float32


CHIPS = {
    "m1": Chip(68, 8, 2.6),
    "m1pro": Chip(200, 16, 5.2),
    "m1max": Chip(400, 32, 10.4),
    "m2": Chip(100, 10, 3.6),
    "m2pro": Chip(200, 19, 6.8),
    "m2max": Chip(400, 38, 13.5),
    "m2ultra": Chip(800, 76, 27.0),
    "m3": Chip(100, 10, 3.6),
    "m3pro": Chip(150, 18, 6.4),
    "m3max": Chip(400, 40, 14.3),
    "m4": Chip(120, 10, 4.3),
    "m4pro": Chip(273, 20, 8.6),
    "m4max": Chip(546, 40, 17.2),
    "m5": Chip(153, 10, 4.3),
}

# Other engines' decoding: llama.cpp 53-59 % on an M2 Ultra, tiny-llm 62 % on an M4 Pro, mlx-lm
# 68-77 % on an M4 Max. Ours is claimed to lie in that range.
BANDWIDTH_SHARES = (0.53, 0.65, 0.77)  # low, expected, high
# The Rust original's tiled multiplication: 2.5 to 3 TFLOP/s on an M5.
ARITHMETIC_SHARE = 0.6
# The original again: 10.0 ms a step on an M5, of which 0.72 GB at 65 % of 153 GB/s are 7.2; the
# other 2.8 ms are about 900 dependent dispatches of 3 us.
MICROSECONDS_PER_PHASE = 3.0
MILLISECONDS_PER_STEP = 0.15  # committing a command buffer, and waking up when it is done

ASSUMPTIONS = f"""\
A phase (dispatches between two barriers) takes the longer of bytes / bandwidth and arithmetic /
peak, plus a latency. Assumed:
  share of the bandwidth       {BANDWIDTH_SHARES[1]:.0%} (range: {BANDWIDTH_SHARES[0]:.0%} to \
{BANDWIDTH_SHARES[2]:.0%}, what other engines report)
  share of peak arithmetic     {ARITHMETIC_SHARE:.0%}
  latency of a phase           {MICROSECONDS_PER_PHASE} us
  commit and wake-up of a step {MILLISECONDS_PER_STEP} ms
Bytes count once, caches or not; unpacking quantised weights counts as no arithmetic. At batches
over 1 the arithmetic share is a hope: the original's kernels for few rows reached 10 % of peak.
"""
EPILOG = f"""\
The program is recorded as for Metal, on a device that does nothing; nothing is computed, and a
--shape needs no file. {ASSUMPTIONS}
A measured step outside the range falsifies the claim: please report it.

examples:
  python -m tinyrvllm.bench predict --chip m4
  python -m tinyrvllm.bench predict --chip m5 --chip m4max --shape llama-3.2-1b:q4_k --batch 1
"""


@dataclass
class Row:
    """A step's cost, and its predicted milliseconds (low and high by the bandwidth's range)."""

    chip: str
    batch: int
    megabytes: float  # read and written
    gigaflops: float
    dispatches: int
    phases: int
    ms: float
    low_ms: float
    high_ms: float


def main(argv: list[str]) -> int:
    parser = common.command("predict", __doc__, EPILOG)
    add_model(parser)
    common.add_batch(parser)
    parser.add_argument(
        "--chip", action="append", choices=CHIPS, required=True, help="repeatable", metavar="NAME"
    )
    parser.add_argument(
        "--context", type=common.positive(), default=160, metavar="N",
        help="tokens of each sequence (default: %(default)s, the middle of 128 + 64)",
    )  # fmt: skip
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        if args.shape:
            path = Path(folder) / "hollow.gguf"
            _, shape, kind = shapes.parse(args.shape)
            shapes.write(path, shape, kind, hollow=True)
        else:
            path = model_path(args)
        rows = predictions(path, args.chip, args.batch or list(common.BATCHES), args.context)
    if args.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        print(f"{args.shape or path.name}, contexts of {args.context} tokens\n\n{as_table(rows)}")
        print(f"\n{ASSUMPTIONS}", end="")
    return 0


def predictions(path: Path, chips: list[str], batches: list[int], context: int) -> list[Row]:
    """A row for each chip and batch size."""
    model = load(path)
    common.check_fits(context, model.config.context_length)
    programs = {batch: record(model, batch, context) for batch in batches}
    return [predict(name, batch, programs[batch]) for name in chips for batch in batches]


def record(model: Model, batch: int, context: int) -> list[list[Launch]]:
    """The phases of a greedy decode step of `batch` sequences with `context` tokens each."""
    blocks = -(-(context + 1) // 16)  # shared by all: so the program's context is theirs, no more
    runner = MetalRunner(model, Device(NullRuntime()), blocks)
    for _ in runner.greedy(decode(context - 1, batch, blocks), 2):  # 2: as in a stream of tokens
        pass
    return [phase for program in runner.last_programs for phase in program.phases]


def predict(name: str, batch: int, phases: Sequence[Sequence[Launch]]) -> Row:
    """The model of ASSUMPTIONS."""
    launches = [launch for phase in phases for launch in phase]
    low, expected, high = (milliseconds(CHIPS[name], phases, s) for s in BANDWIDTH_SHARES[::-1])
    return Row(
        name, batch,
        sum(nbytes(launch) for launch in launches) / 1e6,
        sum(launch.cost.flops for launch in launches) / 1e9,
        len(launches), len(phases), expected, low, high,
    )  # fmt: skip


def milliseconds(chip: Chip, phases: Sequence[Sequence[Launch]], share: float) -> float:
    """One step, at a share of the chip's bandwidth."""
    total = MILLISECONDS_PER_STEP
    for phase in phases:
        moving = sum(map(nbytes, phase)) / (chip.gigabytes_per_second * share * 1e6)
        flops = sum(launch.cost.flops for launch in phase)
        total += max(moving, flops / (chip.teraflops * ARITHMETIC_SHARE * 1e9))
        total += MICROSECONDS_PER_PHASE / 1e3
    return total


def nbytes(launch: Launch) -> int:
    return launch.cost.bytes_read + launch.cost.bytes_written


def as_table(rows: list[Row]) -> str:
    head = ("chip", "batch", "MB", "GFLOP", "dispatches", "phases", "ms/step", "range", "tok/s")
    return common.table(
        head,
        [
            (row.chip, str(row.batch), f"{row.megabytes:.0f}", f"{row.gigaflops:.2f}",
             str(row.dispatches), str(row.phases), f"{row.ms:.2f}",
             f"{row.low_ms:.2f}-{row.high_ms:.2f}", f"{1e3 * row.batch / row.ms:.0f}")
            for row in rows
        ],
    )  # fmt: skip
