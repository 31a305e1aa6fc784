"""Where the time goes.

TINYRVLLM_METAL_PROFILE=1 runs each dispatch in a command buffer of its own, those of recorded
programs too, and prints the GPU's median time for each kernel and shape when the device is closed:
right for comparing kernels, while the sum is larger than an unprofiled run. TINYRVLLM_TIMING=1 prints how a run divides between
recording (CPU) and GPU.
"""

import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .command import Commands, Encoder


@dataclass(frozen=True)
class Work:
    """What one dispatch computes, said by the layer that records it."""

    rows: int = 0
    shape: str = ""  # "N x K"
    nbytes: int = 0  # that must cross the memory bus


@dataclass
class Profile:
    """GPU seconds of each dispatch, by (kernel, work, threadgroups)."""

    rows: dict[tuple[str, Work, int], list[float]] = field(
        default_factory=lambda: defaultdict(list)
    )

    @contextmanager
    def encoder(self, commands: "Commands", concurrent: bool) -> Iterator["Encoder"]:
        """An encoder whose dispatches each run, and are waited for, as they are recorded."""
        from .command import Commands, Encoder

        device, profile = commands.device, self

        class Profiling(Encoder):
            def dispatch(self, pipeline: Any, groups: Any, *arguments: Any, **named: Any) -> None:
                work = named.pop("work", None) or Work()
                alone = Commands(device, pipeline.name)
                with alone, alone._encoder(concurrent) as encoder:
                    encoder.dispatch(pipeline, groups, *arguments, **named)
                count = groups[0] * groups[1] * groups[2]
                profile.add(pipeline.name, work, count, alone.gpu_seconds)
                self.commands.dispatches += 1

        with device.objc.pool(), Profiling(commands, concurrent) as encoder:
            yield encoder

    def add(self, kernel: str, work: Work, threadgroups: int, seconds: float) -> None:
        """Counts a dispatch that has just ended."""
        self.rows[kernel, work, threadgroups].append(seconds)

    def print(self) -> None:
        """The table, most expensive first, on stderr."""
        head = ("kernel", "rows", "N x K", "calls", "us/call", "GB/s", "threadgroups")
        print("{:32} {:>5} {:>20} {:>7} {:>9} {:>7} {:>12}".format(*head), file=sys.stderr)
        # The median: a kernel's first dispatch also loads it and touches its memory.
        rows = [(statistics.median(times), len(times), *key) for key, times in self.rows.items()]
        for seconds, calls, kernel, work, groups in sorted(rows, key=lambda row: -row[0] * row[1]):
            rate = work.nbytes / seconds / 1e9 if seconds else 0.0
            print(
                f"{kernel:32} {work.rows:5} {work.shape:>20} {calls:7} {seconds * 1e6:9.1f} "
                f"{rate:7.1f} {groups:12}",
                file=sys.stderr,
            )


class Timeline(Profile):
    """When each dispatch ran, in order, instead of a table."""

    def __init__(self) -> None:
        super().__init__()
        self._dispatches: list[tuple[str, float, float]] = []

    def add(self, kernel: str, work: Work, threadgroups: int, seconds: float) -> None:
        self._dispatches.append((kernel, time.perf_counter() - seconds, seconds))

    def take(self) -> list[tuple[str, float, float]]:
        """(kernel, start by time.perf_counter, seconds) of the dispatches since the last call."""
        taken, self._dispatches = self._dispatches, []
        return taken

    def print(self) -> None:
        """Nothing: whoever asked for a timeline takes it."""


@dataclass
class Timing:
    """Seconds spent recording (CPU) and running (GPU), over all command buffers."""

    count: int = 0
    encode: float = 0.0
    gpu: float = 0.0

    def add(self, encode: float, gpu: float) -> None:
        """Counts one finished command buffer."""
        self.count += 1
        self.encode += encode
        self.gpu += gpu

    def print(self) -> None:
        """One line on stderr."""
        each = 1e3 / self.count if self.count else 0.0
        print(
            f"{self.count} command buffers: recording {self.encode * each:.3f} ms, "
            f"GPU {self.gpu * each:.3f} ms each",
            file=sys.stderr,
        )
