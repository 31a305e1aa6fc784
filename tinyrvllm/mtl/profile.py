"""Where the time goes.

TINYRVLLM_METAL_PROFILE=1 runs each dispatch in a command buffer of its own, those of recorded
programs too, and prints the GPU's median time for each kernel and shape when the device is closed:
right for comparing kernels, while the sum is larger than an unprofiled run. TINYRVLLM_TIMING=1
prints how a run divides between recording (CPU) and GPU.
"""

import sys
from collections import defaultdict
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from .command import Commands, Encoder
from .library import Pipeline, Size

COLUMNS = "{:32} {:>5} {:>20} {:>7} {:>9} {:>7} {:>12}"


@dataclass(frozen=True)
class Work:
    """What one dispatch computes, said by the layer that records it."""

    rows: int = 0
    shape: str = ""  # "N x K"
    nbytes: int = 0  # that must cross the memory bus


class ProfilingEncoder(Encoder):
    """Runs each dispatch, and waits for it, as it is recorded."""

    def dispatch(
        self, pipeline: Pipeline, groups: Size, *given: Any, work: Work | None = None, **named: Any
    ) -> None:
        alone = Commands(self.commands.device, pipeline.label)
        profile, alone.profile = alone.profile or Profile(), None
        with alone, alone.encoder() as encoder:
            encoder.dispatch(pipeline, groups, *given, **named)
        count = groups[0] * groups[1] * groups[2]
        profile.add(pipeline.label, work or Work(), count, alone.gpu_seconds)
        self.commands.dispatches += 1


class Profile:
    """GPU seconds of each dispatch, by (kernel, work, threadgroups)."""

    encoder = ProfilingEncoder

    def __init__(self) -> None:
        self.rows: dict[tuple[str, Work, int], list[float]] = defaultdict(list)

    def add(self, kernel: str, work: Work, threadgroups: int, seconds: float) -> None:
        """Counts a dispatch that has just ended."""
        self.rows[kernel, work, threadgroups].append(seconds)

    def print(self) -> None:
        """The table, most expensive first, on stderr."""
        head = ("kernel", "rows", "N x K", "calls", "us/call", "GB/s", "threadgroups")
        print(COLUMNS.format(*head), file=sys.stderr)
        # The median: a kernel's first dispatch also loads it and touches its memory.
        rows = [(median(times), len(times), *key) for key, times in self.rows.items()]
        for seconds, calls, kernel, work, groups in sorted(rows, key=lambda row: -row[0] * row[1]):
            rate = work.nbytes / seconds / 1e9 if seconds else 0.0
            figures = calls, f"{seconds * 1e6:.1f}", f"{rate:.1f}", groups
            print(COLUMNS.format(kernel, work.rows, work.shape, *figures), file=sys.stderr)


class Timing:
    """Seconds spent recording (CPU) and running (GPU), for each command buffer."""

    def __init__(self) -> None:
        self.seconds: list[tuple[float, float]] = []

    def print(self) -> None:
        """One line on stderr."""
        record, run = (1e3 * mean(each) for each in zip(*self.seconds or [(0, 0)], strict=True))
        print(
            f"{len(self.seconds)} command buffers: recording {record:.3f} ms, GPU {run:.3f} ms each",
            file=sys.stderr,
        )
