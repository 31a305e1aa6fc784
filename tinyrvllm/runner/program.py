"""A recorded list of dispatches, and the barriers that its read and write sets ask for.

Launches between two barriers form a phase: they run in any order or at once, so Q, K and V are one
phase. A launch begins a new phase only when it touches bytes that the phase's launches write, or
writes bytes that they read. Phases, not dispatches, are what a small model's decoding waits for.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from tinyrvllm.kernels.launch import Launch, Span, pipeline
from tinyrvllm.mtl import Buffer, Device
from tinyrvllm.mtl.replay import IndirectCommands, Recording
from tinyrvllm.runner.options import Options

CONSTANT_ALIGNMENT = 32  # bytes; what every Mac accepts as an offset into constant memory


def phases(launches: Sequence[Launch]) -> list[list[Launch]]:
    """Launches in order, cut into groups with no conflict inside."""
    found: list[list[Launch]] = []
    read: list[Span] = []
    written: list[Span] = []
    for launch in launches:
        if not found or _conflicts(launch, read, written):
            found.append([])
            read, written = [], []
        found[-1].append(launch)
        read += launch.read_set
        written += launch.write_set
    return found


def _conflicts(launch: Launch, read: Sequence[Span], written: Sequence[Span]) -> bool:
    touched = launch.read_set + launch.write_set
    return any(span.overlaps(other) for span in touched for other in written) or any(
        span.overlaps(other) for span in launch.write_set for other in read
    )


class Program:
    """Launches recorded for replay. Nothing is allocated or uploaded when it is executed.

    options.indirect: into an indirect command buffer, one send a replay; else three sends a
    dispatch. options.kernels: files that take the place of a launch's own shader.
    """

    def __init__(
        self,
        device: Device,
        launches: Sequence[Launch],
        label: str,
        options: Options | None = None,
    ) -> None:
        options = options or Options()
        indirect = options.indirect
        self.launches = tuple(
            replace(launch, shader=str(options.kernels[launch.kernel]))
            if launch.kernel in options.kernels
            else launch
            for launch in launches
        )
        launches = self.launches
        self.phases = phases(launches)
        _compile(device, launches, indirect)
        self.constants = _constants(device, launches, label)
        offsets = iter(_constant_offsets(launches))
        slots = max(len(launch.arguments) for launch in launches) + 1
        self.commands: Recording | IndirectCommands = (
            IndirectCommands(device, len(launches), slots, label)
            if indirect
            else Recording(device, label)
        )
        for phase in self.phases:
            for position, launch in enumerate(phase):
                buffers = [(a.span.buffer, a.span.offset) for a in launch.arguments]
                self.commands.record(
                    pipeline(launch, device, indirect),
                    launch.groups,
                    launch.threads,
                    [*buffers, (self.constants, next(offsets))],
                    barrier=position == 0,
                )

    @property
    def bytes_read(self) -> int:
        """Bytes that the launches read, by their own account; likewise written."""
        return sum(launch.cost.bytes_read for launch in self.launches)

    @property
    def bytes_written(self) -> int:
        return sum(launch.cost.bytes_written for launch in self.launches)


def _compile(device: Device, launches: Sequence[Launch], indirect: bool) -> None:
    """Makes the pipelines that are not there yet, several at once: compilers use one core each."""
    shaders = dict.fromkeys(launch.shader for launch in launches)
    kernels = {(launch.shader, launch.kernel, launch.constants): launch for launch in launches}
    with ThreadPoolExecutor() as pool:
        list(pool.map(device.library, shaders))
        list(pool.map(lambda launch: pipeline(launch, device, indirect), kernels.values()))


def _constant_offsets(launches: Sequence[Launch]) -> list[int]:
    sizes = [-(-len(launch.parameters) // CONSTANT_ALIGNMENT) for launch in launches]
    ends = np.cumsum(sizes) * CONSTANT_ALIGNMENT
    return [0, *ends.tolist()]


def _constants(device: Device, launches: Sequence[Launch], label: str) -> Buffer:
    """The argument structs of all launches in one buffer: indirect commands take no setBytes."""
    offsets = _constant_offsets(launches)
    packed = np.zeros(offsets[-1], np.uint8)
    for launch, offset in zip(launches, offsets, strict=False):
        packed[offset : offset + len(launch.parameters)] = np.frombuffer(
            launch.parameters, np.uint8
        )
    return device.from_numpy(packed, f"{label} constants")
