"""`bench kernels`: time, GB/s and GFLOP/s of each kernel on each shape of the table's BENCH.

A decode step never finds its weights in a cache, since a gigabyte of others was read in between. So
each measurement walks over copies of the weights that together exceed the last-level cache; --hot
uses one copy, and shows how flattering that is. Times are the command buffer's own (GPU start to
end), medians over repeats; one command buffer holds one launch for every copy. A legend under the
table explains its columns.

The last table says, shape by shape, where each matmul kernel wins and how much it loses elsewhere.
The row thresholds of runner/options.py come from it; what it says of another device goes to
`generate --matvec-rows` and `--ksplit-rows`. gemm_tensor runs only when it is named.
"""

import argparse
import itertools
import json
import math
import statistics
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..mtl import open_device
from . import elementwise
from .cases import Case, prepare
from .launch import Argument, Launch, Span, encode, whole
from .shapes import BENCH, MATMULS

if TYPE_CHECKING:
    from ..mtl.device import Device

CACHE_BYTES = 64 << 20  # more than the last-level cache of the machines we know
WEIGHT_SLOT = 1  # of every matmul kernel
REPEATS = 7
THREADS, ROUNDS = 1 << 16, 512  # of the loop of multiply-adds: 2.1 GFLOP


@dataclass(frozen=True)
class Row:
    """One measurement; microseconds are of one launch."""

    kernel: str
    rows: int
    shape: str
    microseconds: float
    gigabytes_per_second: float
    gigaflops: float
    numpy_ratio: float | None  # our time over numpy's float32 product of the same shape
    lane_utilisation: float
    line_efficiency: float


def copies_of(launch: Launch, device: "Device", hot: bool) -> list[Launch]:
    """The launch over as many copies of its weights as exceed the cache; one if `hot`."""
    weight = launch.arguments[WEIGHT_SLOT].span
    count = 1 if hot else max(1, -(-CACHE_BYTES // weight.nbytes))
    data = weight.buffer.numpy(np.uint8, (weight.nbytes,), weight.offset)
    launches = [launch]
    for _ in range(count - 1):
        copied = Argument(
            Span(device.from_numpy(data), 0, weight.nbytes), launch.arguments[WEIGHT_SLOT].access
        )
        arguments = list(launch.arguments)
        arguments[WEIGHT_SLOT] = copied
        launches.append(replace(launch, arguments=tuple(arguments)))
    return launches


def seconds(device: "Device", launches: list[Launch]) -> float:
    """Median seconds of one launch, run one after another in one command buffer."""
    times = []
    for _ in range(REPEATS + 1):  # the first one compiles and warms up
        with device.commands() as commands, commands.encoder() as encoder:
            for launch in launches:
                encode(launch, encoder, device)
        times.append(commands.gpu_seconds / len(launches))
    return statistics.median(times[1:])


def numpy_seconds(rows: int, outputs: int, inputs: int, hot: bool) -> float:
    """Median seconds of numpy's float32 x @ w.T, over copies of w as for the kernels."""
    count = 1 if hot else max(1, -(-CACHE_BYTES // (4 * outputs * inputs)))
    rng = np.random.default_rng(0)
    weights = [rng.random((outputs, inputs), np.float32) for _ in range(count)]
    x, times = rng.random((rows, inputs), np.float32), []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for w in weights:
            _ = x @ w.T
        times.append((time.perf_counter() - start) / count)
    return statistics.median(times)


def copy_bandwidth(device: "Device") -> float:
    """GB/s read and written by the copy kernel over more than the caches hold: the limit."""
    count = CACHE_BYTES // 4
    x, y = whole(device.buffer(4 * count)), whole(device.buffer(4 * count))
    return 8 * count / seconds(device, [elementwise.copy(x, y, count)]) / 1e9


def multiply_add_rate(device: "Device") -> float:
    """GFLOP/s of a kernel that does nothing but multiply-adds in registers: the other limit."""
    y = whole(device.buffer(4 * THREADS))
    launch = elementwise.multiply_adds(y, THREADS, ROUNDS)
    return launch.cost.flops / seconds(device, [launch]) / 1e9


def measure(case: Case, device: "Device", hot: bool = False) -> Row:
    """Runs one case and returns its row."""
    launches = prepare(case, device, np.random.default_rng(0)).launches
    first, ratio = launches[0], None
    if case.kernel in MATMULS:
        taken = seconds(device, copies_of(first, device, hot))
        rows, outputs, inputs = (int(str(case[name])) for name in ("rows", "outputs", "inputs"))
        ratio = taken / numpy_seconds(rows, outputs, inputs, hot)
    else:
        taken = seconds(device, launches) * len(launches)
    moved = sum(x.cost.bytes_read + x.cost.bytes_written for x in launches)
    flops = sum(x.cost.flops for x in launches)
    return Row(
        case.kernel, first.rows, first.shape, taken * 1e6, moved / taken / 1e9, flops / taken / 1e9,
        ratio, first.cost.lane_utilisation, first.cost.line_efficiency,
    )  # fmt: skip


Losses = dict[str, dict[int, dict[str, float]]]


def losses(rows: list[Row]) -> Losses:
    """shape -> activation rows -> matmul kernel -> its time over the fastest one's."""
    times: Losses = {}
    for row in rows:
        if row.kernel in MATMULS:
            of_shape = times.setdefault(row.shape, {}).setdefault(row.rows, {})
            of_shape[row.kernel] = row.microseconds
    return {
        shape: {
            n: {kernel: t / min(kernels.values()) for kernel, t in kernels.items()}
            for n, kernels in sorted(counts.items())
        }
        for shape, counts in times.items()
    }


def thresholds(table: Losses) -> tuple[int, int]:
    """(up to how many rows matvec wins, up to how many matvec or ksplit does), over all shapes.

    A kernel wins at a number of rows when the product of its losses over the shapes is smallest.
    """
    best: dict[int, str] = {}
    for n in sorted({n for counts in table.values() for n in counts}):
        found = [counts[n] for counts in table.values() if n in counts]
        common = set.intersection(*(set(kernels) for kernels in found))
        best[n] = min(sorted(common), key=lambda k: math.prod(kernels[k] for kernels in found))
    matvec = list(itertools.takewhile(lambda n: best[n] == "matvec", best))
    either = list(itertools.takewhile(lambda n: best[n] in ("matvec", "ksplit"), best))
    return (matvec or [0])[-1], (either or [0])[-1]


LEGEND = """
us         one launch
of copy    its GB/s, as a share of the copy kernel's
of fma     its GFLOP/s, as a share of a kernel's that does nothing but multiply-adds
x numpy    its time, over numpy's for the same product in float32: below 1 it is faster
lanes      share of a simdgroup's lanes that have work in the main loop
lines      share of each 128-byte line that one load of a simdgroup uses"""


def print_table(rows: list[Row], bandwidth: float, rate: float) -> None:
    """The measurements beside the machine's two limits, and where each matmul kernel wins."""
    print(
        f"{'kernel':12} {'rows':>4} {'shape':24} {'us':>9} {'GB/s':>7} {'of copy':>7} "
        f"{'GFLOP/s':>8} {'of fma':>7} {'x numpy':>8} {'lanes':>6} {'lines':>6}"
    )
    for row in rows:
        ratio = f"{row.numpy_ratio:8.2f}" if row.numpy_ratio is not None else f"{'-':>8}"
        print(
            f"{row.kernel:12} {row.rows:4} {row.shape:24} {row.microseconds:9.0f} "
            f"{row.gigabytes_per_second:7.2f} {row.gigabytes_per_second / bandwidth:7.0%} "
            f"{row.gigaflops:8.1f} {row.gigaflops / rate:7.0%} "
            f"{ratio} {row.lane_utilisation:6.0%} {row.line_efficiency:6.0%}"
        )
    print(LEGEND)
    print(
        f"this machine: copy of {CACHE_BYTES >> 20} MiB {bandwidth:.1f} GB/s read and written, "
        f"multiply-adds {rate:.0f} GFLOP/s"
    )
    table = losses(rows)
    if not table:
        return
    print("\ntime over the fastest matmul kernel's, by rows of x (1.00: it wins)")
    for shape, counts in table.items():
        print(f"{shape:24} {'rows':12}" + "".join(f"{n:7}" for n in counts))
        for kernel in MATMULS:
            values = [kernels.get(kernel) for kernels in counts.values()]
            if any(values):
                cells = (f"{v:7.2f}" if v is not None else f"{'-':>7}" for v in values)
                print(f"{'':24} {kernel:12}" + "".join(cells))
    matvec_rows, ksplit_rows = thresholds(table)
    print(f"thresholds: --matvec-rows {matvec_rows} --ksplit-rows {ksplit_rows}")


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    kernels = sorted({case.kernel for case in BENCH})
    parser = argparse.ArgumentParser(
        prog="python -m tinyrvllm.bench kernels", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--device", default="soft", help="soft, metal or cuda (default: soft)")
    parser.add_argument("--kernel", action="append", choices=kernels, help="repeatable")
    parser.add_argument("--kind", action="append", help="a weight type, such as Q4_1 (repeatable)")
    parser.add_argument("--rows", type=int, action="append", help="activation rows (repeatable)")
    parser.add_argument("--hot", action="store_true", help="one cached matrix: a flattering figure")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args(arguments)
    rows = []
    with open_device(options.device) as device:
        for case in BENCH:
            shape = dict(case.shape)
            if (
                (options.kernel and case.kernel not in options.kernel)
                or (options.kind and shape.get("kind") not in options.kind)
                or (options.rows and shape.get("rows") not in options.rows)
                or (case.kernel == "gemm_tensor" and not options.kernel)
            ):
                continue
            rows.append(measure(case, device, options.hot))
            if options.json:
                print(json.dumps(asdict(rows[-1])), flush=True)
        if not options.json:
            print_table(rows, copy_bandwidth(device), multiply_add_rate(device))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
