"""`bench kernels`: time, GB/s and GFLOP/s of each kernel on each shape of the table's BENCH.

A decode step never finds its weights in a cache, since a gigabyte of others was read in between. So
each measurement walks over copies of the weights that together exceed the last-level cache; --hot
uses one copy, and shows how flattering that is. Times are the command buffer's own (GPU start to
end), medians over repeats; one command buffer holds one dispatch for every copy.

    python -m tinyrvllm.kernels.bench --device soft --kernel matvec --kind Q4_1
"""

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..mtl import open_device
from .cases import Case, Prepared, prepare
from .launch import Argument, Launch, Span, encode
from .shapes import BENCH

if TYPE_CHECKING:
    from ..mtl.device import Device

CACHE_BYTES = 64 << 20  # more than the last-level cache of the machines we know
WEIGHT_SLOT = 1  # of every matmul kernel
REPEATS = 7


@dataclass(frozen=True)
class Row:
    """One measurement. Seconds are of one launch."""

    kernel: str
    kind: str
    rows: int
    outputs: int
    inputs: int
    microseconds: float
    gigabytes_per_second: float
    gigaflops: float
    numpy_ratio: float  # our time over numpy's float32 matmul of the same shape
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


def measure(case: Case, device: "Device", hot: bool = False) -> Row:
    """Runs one matmul case and returns its row."""
    prepared: Prepared = prepare(case, device, np.random.default_rng(0))
    (launch,) = prepared.launches
    rows, outputs, inputs = (int(str(case[name])) for name in ("rows", "outputs", "inputs"))
    taken = seconds(device, copies_of(launch, device, hot))
    moved = launch.cost.bytes_read + launch.cost.bytes_written
    return Row(
        launch.kernel, str(case["kind"]), rows, outputs, inputs, taken * 1e6, moved / taken / 1e9,
        launch.cost.flops / taken / 1e9, taken / numpy_seconds(rows, outputs, inputs, hot),
        launch.cost.lane_utilisation, launch.cost.line_efficiency,
    )  # fmt: skip


def fastest(rows: list[Row]) -> dict[tuple[str, int, int, int], str]:
    """(kind, rows, outputs, inputs) -> the kernel that won there."""
    best: dict[tuple[str, int, int, int], Row] = {}
    for row in rows:
        key = (row.kind, row.rows, row.outputs, row.inputs)
        if key not in best or row.microseconds < best[key].microseconds:
            best[key] = row
    return {key: row.kernel for key, row in best.items()}


def print_table(rows: list[Row]) -> None:
    print(
        f"{'kernel':12} {'kind':5} {'rows':>4} {'N x K':>12} {'us':>9} {'GB/s':>7} {'GFLOP/s':>8} "
        f"{'x numpy':>8} {'lanes':>6} {'lines':>6}"
    )
    winners = fastest(rows)
    for row in rows:
        shape = f"{row.outputs} x {row.inputs}"
        won = winners[row.kind, row.rows, row.outputs, row.inputs] == row.kernel
        print(
            f"{row.kernel:12} {row.kind:5} {row.rows:4} {shape:>12} {row.microseconds:9.0f} "
            f"{row.gigabytes_per_second:7.2f} {row.gigaflops:8.1f} {row.numpy_ratio:8.2f} "
            f"{row.lane_utilisation:6.0%} {row.line_efficiency:6.0%}{'  <- fastest' if won else ''}"
        )


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="bench kernels", description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="soft", help="soft, metal or cuda (default: soft)")
    parser.add_argument("--kernel", action="append", help="matvec, ksplit or gemm (repeatable)")
    parser.add_argument("--kind", action="append", help="a weight type, such as Q4_1 (repeatable)")
    parser.add_argument("--rows", type=int, action="append", help="activation rows (repeatable)")
    parser.add_argument("--hot", action="store_true", help="one cached matrix: a flattering figure")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args(arguments)
    rows = []
    with open_device(options.device) as device:
        for case in BENCH:
            if (
                (options.kernel and case.kernel not in options.kernel)
                or (options.kind and case["kind"] not in options.kind)
                or (options.rows and case["rows"] not in options.rows)
            ):
                continue
            rows.append(measure(case, device, options.hot))
            if options.json:
                print(json.dumps(asdict(rows[-1])), flush=True)
    if not options.json:
        print_table(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
