"""What is this machine, and does Metal work on it: python -m tinyrvllm.doctor.

Also the shortest complete program over the bridge: one kernel, from its text to its result.
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from tinyrvllm import hub
from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.mtl import Device, open_device

PARTS = ("messages", "shaders", "lanes", "kernels", "model", "speed", "prediction")
DEVICES = ("metal", "soft", "soft:check", "cuda")
COUNT = 1000  # numbers to add: not a multiple of the threadgroup, so the last one has idle threads
THREADS = 256  # in a threadgroup
SHADER = """\
#include <metal_stdlib>
using namespace metal;

kernel void vector_add(device const float *a [[buffer(0)]],
                       device const float *b [[buffer(1)]],
                       device float *c [[buffer(2)]],
                       constant uint &count [[buffer(3)]],
                       uint i [[thread_position_in_grid]]) {
    if (i < count) c[i] = a[i] + b[i];
}
"""
DESCRIPTION = """\
Says which GPU (or stand-in for one) this machine has, and runs one kernel on it step by step.

  metal       Apple's GPU, on a Mac with Apple silicon
  soft        the same shaders and the same messages, run by this CPU: needs a C++ compiler,
              pip install "tinyrvllm[soft]"
  soft:check  soft with every check on: bounds, races, barriers, lifetimes
  cuda        the same shaders and messages on an NVIDIA GPU: needs its driver,
              pip install "tinyrvllm[cuda]"

--full proves all that this machine can: every message and shader, every kernel against numpy, a
model against the oracle, and speed beside what we claim. It takes some minutes and writes one file
without personal data. On a Mac, please attach it to an issue: nobody here has one.
"""


@dataclass
class Report:
    """What doctor found out; with --json this is the output."""

    device: str
    name: str = ""
    limits: dict[str, object] = field(default_factory=dict)
    unverified: list[str] = field(default_factory=list)  # messages whose types are taken on trust
    compile_seconds: float = 0.0
    gpu_seconds: float = 0.0
    max_difference: float = float("nan")  # from numpy

    @property
    def healthy(self) -> bool:
        """Whether the kernel computed exactly what numpy does."""
        return self.max_difference == 0.0


def available() -> dict[str, str]:
    """Device name -> "" when it opens here, else why not."""
    reasons = {}
    for name in DEVICES:
        try:
            open_device(name).close()
            reasons[name] = ""
        except TinyrvllmError as reason:
            reasons[name] = str(reason)
    return reasons


def vector_add(device: Device, report: Report, say: Callable[[str], None]) -> None:
    """The walk-through: adds two vectors on the device and compares with numpy."""
    a = np.arange(COUNT, dtype=np.float32)  # [COUNT]
    b = np.linspace(-1, 1, COUNT, dtype=np.float32)  # [COUNT]

    say("\n1. A kernel is compiled from its text when the program runs:\n")
    say("\n".join(f"     {line}" for line in SHADER.splitlines()))
    start = time.perf_counter()
    library = device.library_from_source(SHADER, name="vector_add.metal")
    pipeline = library.pipeline("vector_add")
    report.compile_seconds = time.perf_counter() - start
    say(
        f"\n   {report.compile_seconds * 1e3:.1f} ms. This pipeline runs up to "
        f"{pipeline.max_threads} threads in a threadgroup, in simdgroups of {pipeline.simd_width}."
    )

    say("\n2. Buffers are memory that CPU and GPU share: filling one is writing to an array.")
    groups = -(-COUNT // THREADS)
    say(
        f"\n3. Work is recorded first: {groups} threadgroups of {THREADS} threads, one for each of "
        f"{COUNT} numbers\n   and {groups * THREADS - COUNT} that find nothing to do. Then it is "
        "committed, and only after the wait may we look."
    )
    with (
        device.from_numpy(a, "a") as x,
        device.from_numpy(b, "b") as y,
        device.buffer(a.nbytes, "c") as z,
    ):
        for _ in range(2):  # the first run also wakes the device: the second is measured
            with device.commands("vector add") as commands, commands.encoder() as encoder:
                encoder.dispatch(
                    pipeline,
                    groups=(groups, 1, 1),
                    threads=(THREADS, 1, 1),
                    buffers=[x, y, z],
                    constants=np.uint32(COUNT).tobytes(),
                )
        c = z.numpy(np.float32)  # [COUNT]
        report.gpu_seconds = commands.gpu_seconds
        report.max_difference = float(np.abs(c - (a + b)).max())
        say(f"\n4. The result, after {report.gpu_seconds * 1e6:.0f} us on the device:\n")
        for i in (0, 1, COUNT - 1):
            say(f"     {a[i]:g} + {b[i]:g} = {c[i]:g}")


def examine(name: str, say: Callable[[str], None]) -> Report:
    """Opens a device, describes it and runs one kernel. Raises MetalError where it cannot."""
    with open_device(name) as device:
        report = Report(name, device.name, asdict(device.limits), device.objc.runtime.unverified)
        limits = device.limits
        say(f"device     {name}: {device.name}")
        say(f"families   {', '.join(limits.families)}")
        say(
            f"limits     {limits.max_threads_per_threadgroup[0]} threads and "
            f"{limits.max_threadgroup_memory} bytes in a threadgroup; buffers up to "
            f"{limits.max_buffer_length / 1e9:.1f} GB; {limits.recommended_working_set / 1e9:.1f} "
            "GB in all"
        )
        for message in report.unverified:
            say(f"note       this system publishes no types for {message}; taken on trust")
        vector_add(device, report, say)
        return report


def full(name: str, options: argparse.Namespace, say: Callable[[str], None]) -> int:
    """Examines everything, writes the report, says the rest; the exit status."""
    from tinyrvllm import examination  # everything else of the house

    try:
        options.report.touch()
    except OSError as error:
        raise TinyrvllmError(f"cannot write the report {options.report}: {error}") from error
    say("\nEverything else:\n")
    with open_device(name) as device:
        report = examination.examine(
            device, name, options.model, say, options.only or PARTS
        )
    examination.save(report, options.report)
    if options.json:
        print(json.dumps(report))
    say(f"\nwrote {options.report}: this machine is {'well' if report['ok'] else 'NOT well'}")
    if name == "metal":
        say("Please attach that file to an issue: it has no personal data, and we have no Mac.")
    return 0 if report["ok"] else 1


def print_row(path: Path) -> int:
    """Prints a report file as a row of docs/apple.md; the exit status."""
    from tinyrvllm import examination

    try:
        print(examination.row(json.loads(path.read_text(encoding="utf-8"))))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"doctor: {path} is no report of doctor --full: {error!r}", file=sys.stderr)
        return 2
    return 0


def main(arguments: list[str] | None = None) -> int:
    """The command line. 0: all is well; 1: a wrong result; 2: no such device here."""
    parser = argparse.ArgumentParser(
        prog="python -m tinyrvllm.doctor",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--device",
        choices=("auto", *DEVICES),
        default="auto",
        help="auto (default): metal where there is one, else soft",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")
    parser.add_argument("--full", action="store_true", help="examine everything; write a report")
    parser.add_argument(
        "--report", type=Path, default=Path("tinyrvllm-report.json"), metavar="FILE",
        help="where --full writes (default: %(default)s)",
    )
    parser.add_argument(
        "-m", "--model", default=hub.DEFAULT_MODEL, metavar="MODEL",
        help="what --full runs (default: %(default)s, fetched if need be)",
    )
    parser.add_argument(
        "--only", action="append", choices=PARTS, metavar="PART",
        help=f"of --full only this part, repeatable: {', '.join(PARTS)}",
    )
    parser.add_argument(
        "--row", type=Path, metavar="FILE", help="print a report as a row of docs/apple.md, and end"
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if options.row:
        return print_row(options.row)
    say: Callable[[str], None] = print if not options.json else lambda text: None
    reasons = available()
    say(f"machine    {platform.system()} {platform.machine()}, Python {platform.python_version()}")
    for name, reason in reasons.items():
        say(f"  {name:11}{reason or 'can be had'}")
    name = options.device
    if name == "auto":
        name = "soft" if reasons["metal"] else "metal"
    try:
        report = examine(name, say)
        if options.full:
            return full(name, options, print if not options.json else lambda text: None)
    except TinyrvllmError as error:
        print(f"doctor: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(asdict(report) | {"devices": reasons, "healthy": report.healthy}))
    elif report.healthy:
        say("\nAll of it equals numpy. This machine is well.")
    else:
        say(f"\nnumpy differs by up to {report.max_difference}: this machine is not well.")
    return 0 if report.healthy else 1


if __name__ == "__main__":
    sys.exit(main())
