"""Python's own cost of a decoded token, on a device that does nothing."""

import json
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from gguf.constants import GGMLQuantizationType

from tinyrvllm import shapes
from tinyrvllm.benches import common
from tinyrvllm.benches.null_runtime import NullRuntime
from tinyrvllm.model import load
from tinyrvllm.mtl import Device
from tinyrvllm.runner.batch import Batch
from tinyrvllm.runner.metal import MetalRunner
from tinyrvllm.runner.options import Options

EPILOG = """\
Greedy decoding of a llama with --layers layers and tiny matrices (the list of dispatches is that
of any width): the recorded program replayed, committed, waited for, the token read. Every message
goes to a C function that does nothing. Medians, with the goals beside them; once more while a second
Python thread computes: a message that gives up the interpreter (a wait must, recorded ones do not)
may have to wait 5 ms to get it back. cpu ms is the thread's own processor time, which other programs
hardly disturb.

examples:
  python -m tinyrvllm.bench host
  python -m tinyrvllm.bench host --layers 16 --steps 50 --json
"""
GOALS_MS = {"direct": 0.4, "indirect": 0.1}


@dataclass
class Row:
    """Milliseconds of Python for one decoded token."""

    replay: str  # direct: sends for each dispatch; indirect: one indirect command buffer
    busy_thread: bool
    ms: float  # median, by the clock on the wall
    ms_p90: float  # 9 of 10 steps took no longer
    ms_mean: float
    cpu_ms: float  # mean processor time of the thread: what other programs do not disturb
    goal_ms: float  # of the median, whatever the second thread does
    dispatches: int


def main(argv: list[str]) -> int:
    parser = common.command("host", __doc__, EPILOG)
    parser.add_argument(
        "--layers", type=common.positive(256), default=32, metavar="N",
        help="of the model (default: %(default)s)",
    )
    parser.add_argument(
        "--steps", type=common.positive(), default=200, metavar="N",
        help="measured (default: %(default)s)",
    )  # fmt: skip
    args = parser.parse_args(argv)
    rows = measure(args.layers, args.steps)
    common.progress("")
    if args.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return 0
    head = ("replay", "second thread", "dispatches", "ms/token", "p90", "mean", "cpu ms", "goal")
    lines = [
        (row.replay, "busy" if row.busy_thread else "none", str(row.dispatches), f"{row.ms:.3f}",
         f"{row.ms_p90:.3f}", f"{row.ms_mean:.3f}", f"{row.cpu_ms:.3f}", f"{row.goal_ms}")
        for row in rows
    ]  # fmt: skip
    print(common.table(head, lines))
    return 0


def measure(layers: int, steps: int) -> list[Row]:
    """Both ways of replaying, without and with a busy thread."""
    shape = shapes.Shape("llama", layers, 64, 128, 2, 1, vocab=320, rope_base=1e4)
    rows = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "tiny.gguf"
        shapes.write(path, shape, GGMLQuantizationType.F16, hollow=True)
        model = load(path)
        blocks = steps // 16 + 2
        for replay in ("direct", "indirect"):
            options = Options(indirect=replay == "indirect")
            runner = MetalRunner(model, Device(NullRuntime()), blocks, options=options)
            time_steps(runner, 2, blocks)  # records the program
            dispatches = sum(len(program.launches) for program in runner.last_programs)
            for busy in (False, True):
                common.progress(f"{replay}, second thread {'busy' if busy else 'quiet'}")
                with busy_thread() if busy else nullcontext():
                    times, cpu_ms = time_steps(runner, steps, blocks)
                p90 = sorted(times)[len(times) * 9 // 10]
                rows.append(
                    Row(replay, busy, statistics.median(times), p90, statistics.fmean(times),
                        cpu_ms, GOALS_MS[replay], dispatches)
                )  # fmt: skip
    return rows


def time_steps(runner: MetalRunner, steps: int, blocks: int) -> tuple[list[float], float]:
    """(milliseconds of each step, mean milliseconds of this thread's processor time)."""
    times, start, cpu = [], time.perf_counter(), time.thread_time()
    for _ in runner.greedy(decode(0, 1, blocks), steps):
        times.append(1e3 * (time.perf_counter() - start))
        start = time.perf_counter()
    return times, 1e3 * (time.thread_time() - cpu) / steps


def decode(position: int, size: int, blocks: int) -> Batch:
    """A decode step of `size` sequences at a position, which share their blocks: nothing is read."""
    same = np.full(size, position, np.int32)
    return Batch(
        token_ids=np.zeros(size, np.int32),
        positions=same,
        slot_mapping=same,
        block_tables=np.tile(np.arange(blocks, dtype=np.int32), (size, 1)),
        context_lens=same + 1,
        query_start=np.arange(size + 1, dtype=np.int32),
        sample_rows=np.arange(size, dtype=np.int32),
        state_slots=np.arange(size, dtype=np.int32),
    )


@contextmanager
def busy_thread() -> Iterator[None]:
    """A second thread that wants the interpreter all the time."""
    stop = threading.Event()

    def count() -> None:
        n = 0
        while not stop.is_set():
            n += 1

    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
