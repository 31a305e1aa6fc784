"""NVIDIA's compute-sanitizer over every case of the shape table: python -m tests.cuda.sanitize

  python -m tests.cuda.sanitize                   all four tools, side by side; a minute on an H200
  python -m tests.cuda.sanitize --tool racecheck  one of them

Cases of matvec, ksplit and attend_one run once more as this device gets them: for many cores.
initcheck would find nothing in memory that is zeroed when it is had, as this device's is, so there
it comes as it is. Some tests fetch whole buffers of which the kernel wrote a part: such copies to the
host are counted apart. The rope cases read whole pools, and run zeroed.

exit status: 0 no report from a kernel and no wrong result, 1 otherwise, 2 no compute-sanitizer here
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import IO, Any
from unittest import mock

from tinyrvllm.kernels import shapes
from tinyrvllm.kernels.cases import Case, case, check
from tinyrvllm.mtl import open_device

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
NEEDS_METAL_4 = "gemm_tensor"
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")
# initcheck's report of a copy of memory that nothing has written
HOST_COPY = re.compile(r"Host API memory access error.*\n.*Uninitialized access.*cudaMemcpy source")
DONE = re.compile(r"^cases (\d+), wrong (\d+)$", re.MULTILINE)


@dataclass
class Report:
    """What a tool said."""

    cases: int
    wrong: int
    kernels: int  # reports of kernels
    copies: int  # of copies to the host


def every_case() -> list[Case]:
    """The table, then what a GPU of many cores gets otherwise."""
    return [c for c in shapes.TABLE if c.kernel != NEEDS_METAL_4] + for_many_cores()


def for_many_cores() -> list[Case]:
    """The table's cases of what a GPU of many cores gets otherwise, as it gets them."""
    cases = []
    for c in shapes.TABLE:
        shape = dict(c.shape)
        if c.kernel == "attend_one":
            cases.append(case("attend_spread", **shape))
        elif c.kernel in ("matvec", "ksplit") and "simdgroups" not in shape:
            cases.append(case(c.kernel, **shape, simdgroups=2048))
    return cases


def run(cases: list[Case], device: str = "cuda", zeroed: bool = True) -> int:
    """Checks each case; prints how many, and returns how many were wrong."""
    from tinyrvllm.soft.cuda import driver, memory

    state, allocations = {"zeroed": True}, []
    upload = memory.TwoSided.upload

    def allocate(card: driver.Card, nbytes: int) -> int:
        address = int(driver.call("cuMemAlloc", nbytes))
        behind = memory.PADDING + memory.BLOCK  # which load_packed may look at
        start = 0 if state["zeroed"] else max(nbytes - behind, 0)
        driver.call("cuMemsetD8Async", address + start, 0, nbytes - start, card.stream)
        allocations.append(nbytes)
        return address

    def upload_all(buffer: memory.TwoSided) -> None:
        if buffer.small and buffer.shown and buffer._copied is None:
            buffer._copied = ~buffer.mirror()  # all of it differs from what the card has
        upload(buffer)

    wrong = 0
    with (
        mock.patch.object(driver.Card, "allocate", driver.Card.allocate if zeroed else allocate),
        mock.patch.object(memory.TwoSided, "upload", upload if zeroed else upload_all),
        open_device(device) as opened,
    ):
        for c in cases:
            state["zeroed"] = zeroed or c.kernel.startswith("rope")
            print("case", c, flush=True)  # a report's kernel is that of the case before it
            try:
                check(c, opened)
            except AssertionError as error:
                wrong += 1
                print("wrong:", c, error)
        if not zeroed:
            assert allocations, "expected memory to be had through Card.allocate: it was zeroed"
    print(f"cases {len(cases)}, wrong {wrong}")
    return wrong


def start(tool: str, log: IO[str]) -> subprocess.Popen[str]:
    inner = [sys.executable, "-m", "tests.cuda.sanitize", "--inner", tool]
    command = ["compute-sanitizer", "--tool", tool, "--print-limit", "5000", *inner]
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, text=True)


def read(tool: str, log: str) -> Report | None:
    """What a tool's output says; None where it did not reach its end."""
    done, summary = DONE.search(log), SUMMARY.search(log)
    if not done or not summary:
        return None
    copies = len(HOST_COPY.findall(log)) if tool == "initcheck" else 0
    return Report(int(done[1]), int(done[2]), int(summary[1]) - copies, copies)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.cuda.sanitize", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--tool", choices=TOOLS, action="append", help="default: all four")
    parser.add_argument("--inner", choices=TOOLS, help=argparse.SUPPRESS)
    args: Any = parser.parse_args(argv)
    if args.inner:
        return 1 if run(every_case(), zeroed=args.inner != "initcheck") else 0
    if not shutil.which("compute-sanitizer"):
        print("error: no compute-sanitizer in the PATH: it comes with the CUDA toolkit", file=sys.stderr)
        return 2
    status, cases = 0, len(every_case())
    logs = {tool: tempfile.TemporaryFile("w+") for tool in args.tool or TOOLS}  # noqa: SIM115
    started = [(tool, log, start(tool, log)) for tool, log in logs.items()]
    for tool, log, process in started:
        process.wait()
        log.seek(0)
        text = log.read()
        log.close()
        report = read(tool, text)
        if report is None or (report.cases, report.wrong, report.kernels) != (cases, 0, 0):
            status = 1
            print(text)
        print(f"{tool:9} {report or f'ended with {process.returncode} before its last case'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
