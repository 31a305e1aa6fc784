"""What a step costs: counts that are the same on every machine, and the device's time."""

import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

import numpy as np

from tinyrvllm.kernels.kv_cache import KvLayout
from tinyrvllm.model.config import ModelConfig
from tinyrvllm.mtl import Buffer
from tinyrvllm.mtl.profile import Profile, Work
from tinyrvllm.runner.program import Program


@dataclass(frozen=True)
class Report:
    """The last step of a runner (one command buffer), and the device's time a step.

    Attributes:
        phases: groups of dispatches with a barrier between; see program.py.
        weight_bytes, kv_bytes: read from the file and from the cache, each byte once.
        host_bytes: written by the host, all into the step buffer.
        allocations: buffers made.
        microseconds: the median time on the device of the latest steps.
        kernels: dispatches by kernel.
        steps, total_microseconds, total_kernels: of all steps, the last one included.
    """

    dispatches: int
    phases: int
    weight_bytes: int
    kv_bytes: int
    host_bytes: int
    allocations: int
    microseconds: float
    kernels: dict[str, int]
    steps: int
    total_microseconds: float
    total_kernels: dict[str, int]


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


class Tally:
    """What all steps of a runner have cost so far."""

    def __init__(self) -> None:
        self.steps = 0
        self.seconds = 0.0  # on the device
        self.runs: Counter[Program] = Counter()
        self._latest: deque[float] = deque(maxlen=1000)

    def add(self, seconds: float) -> None:
        """One command buffer is done."""
        self.steps += 1
        self.seconds += seconds
        self._latest.append(seconds)

    @property
    def median(self) -> float:
        """Seconds of the latest steps."""
        return median(self._latest or [0.0])

    @property
    def kernels(self) -> Counter[str]:
        """Dispatches by kernel."""
        total: Counter[str] = Counter()
        for program, runs in self.runs.items():
            for launch in program.launches:
                total[launch.kernel] += runs
        return total


def weight_bytes(programs: Iterable[Program], file: set[Buffer]) -> int:
    """Bytes of the model's file that programs read; of a gathered table just the rows."""
    total = 0
    for program in programs:
        for launch in program.launches:
            weights = sum(span.nbytes for span in launch.read_set if span.buffer in file)
            total += min(weights, launch.cost.bytes_read)
    return total


def kv_bytes(config: ModelConfig, layout: KvLayout, context_lens: np.ndarray) -> int:
    """Bytes of keys and values that a decode step of these contexts reads, over all layers."""
    token = 2 * layout.kv_heads * layout.padded_dim * layout.dtype.itemsize
    total = 0
    for kind, window in zip(config.layer_kinds, config.sliding_window, strict=True):
        if kind == "attention":
            total += token * int(np.minimum(context_lens, window or context_lens).sum())
    return total
