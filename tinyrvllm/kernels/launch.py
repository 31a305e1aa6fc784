"""What a kernel module hands out: a `Launch`, one dispatch described as data.

A module's functions are pure: shapes and places in, `Launch` out, nothing is sent. So the same
description can be encoded at once (`encode`), recorded into a program, put into an indirect
command buffer (constants in one buffer: no setBytes there), costed, or compared with the bytes
that the checking device saw it touch.
"""

from dataclasses import dataclass, field
from enum import Flag
from typing import TYPE_CHECKING

from ..errors import TinyrvllmError
from ..mtl.profile import Work

if TYPE_CHECKING:
    from ..mtl.buffer import Buffer
    from ..mtl.command import Encoder
    from ..mtl.device import Device
    from ..mtl.library import Pipeline

SIMD_WIDTH = 32  # threads of a simdgroup, on every GPU of Apple's
Size = tuple[int, int, int]


class KernelError(TinyrvllmError):
    """Shapes or types that a kernel does not take."""


class Access(Flag):
    """What a kernel does with a span."""

    NONE = 0  # bound because Metal wants every slot bound; never touched
    READ = 1
    WRITE = 2
    READ_WRITE = 3


@dataclass(frozen=True)
class Span:
    """Bytes of a buffer: where an array lies."""

    buffer: "Buffer"
    offset: int
    nbytes: int

    def part(self, offset: int, nbytes: int) -> "Span":
        """The `nbytes` from `offset` on. Raises KernelError when they are not inside."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise KernelError(
                f"expected bytes inside a span of {self.nbytes}, found {offset}..{offset + nbytes}"
            )
        return Span(self.buffer, self.offset + offset, nbytes)

    def tail(self, offset: int) -> "Span":
        """All bytes from `offset` on."""
        return self.part(offset, self.nbytes - offset)

    def overlaps(self, other: "Span") -> bool:
        """Whether the two share a byte."""
        return (
            self.buffer is other.buffer
            and self.offset < other.offset + other.nbytes
            and other.offset < self.offset + self.nbytes
        )


def whole(buffer: "Buffer") -> Span:
    """All bytes of a buffer."""
    return Span(buffer, 0, buffer.nbytes)


@dataclass(frozen=True)
class Argument:
    """One buffer slot: a span and what the kernel does with it."""

    span: Span
    access: Access


def reads(span: Span) -> Argument:
    return Argument(span, Access.READ)


def writes(span: Span) -> Argument:
    return Argument(span, Access.WRITE)


def updates(span: Span) -> Argument:
    return Argument(span, Access.READ_WRITE)


def unused(span: Span) -> Argument:
    """A slot that this variant does not touch, filled with something that is bound anyway."""
    return Argument(Span(span.buffer, span.offset, 0), Access.NONE)


def optional(span: Span | None, instead: Span) -> Argument:
    """Reads the span if there is one."""
    return reads(span) if span is not None else unused(instead)


@dataclass(frozen=True)
class Cost:
    """What a launch asks of the machine, from its shapes alone (upper bounds for padded rows)."""

    bytes_read: int = 0  # each byte once, however often caches serve it again
    bytes_written: int = 0
    flops: int = 0  # a fused multiply-add counts 2
    barriers: int = 0  # threadgroup barriers that one thread passes
    threadgroup_bytes: int = 0
    lane_utilisation: float = 1.0  # share of lanes with work in the main loop
    line_efficiency: float = 1.0  # share of each 128-byte line that one step of a simdgroup uses


@dataclass(frozen=True)
class Launch:
    """One dispatch. Slots 0, 1, ... are `arguments`; `parameters` is the slot after them."""

    shader: str  # stem of the .metal file
    kernel: str
    constants: tuple[tuple[str, int | bool | float], ...]  # function constants
    groups: Size  # threadgroups in the grid
    threads: Size  # threads in a threadgroup
    arguments: tuple[Argument, ...]
    parameters: bytes  # the kernel's argument struct
    cost: Cost = field(default_factory=Cost)
    rows: int = 0  # for profiles: activation rows, and the rest of the shape
    shape: str = ""

    @property
    def read_set(self) -> list[Span]:
        """Spans that the kernel may read."""
        return [a.span for a in self.arguments if a.access & Access.READ]

    @property
    def write_set(self) -> list[Span]:
        """Spans that the kernel may write."""
        return [a.span for a in self.arguments if a.access & Access.WRITE]


def pipeline(launch: Launch, device: "Device", indirect: bool = False) -> "Pipeline":
    """The launch's kernel for this device, compiled when it is first asked for.

    Raises KernelError where a simdgroup has other than 32 threads, as on an Intel Mac's GPU.
    """
    library = device.library(launch.shader)
    found = library.pipeline(launch.kernel, dict(launch.constants), indirect)
    if found.simd_width != SIMD_WIDTH:
        raise KernelError(
            f"kernel {launch.kernel!r}: expected simdgroups of {SIMD_WIDTH} threads, as Apple's "
            f"GPUs have, found {found.simd_width} on {device.name}; choose another device"
        )
    return found


def encode(launch: Launch, encoder: "Encoder", device: "Device") -> None:
    """Records the launch into an encoder."""
    encoder.dispatch(
        pipeline(launch, device),
        groups=launch.groups,
        threads=launch.threads,
        buffers=[(a.span.buffer, a.span.offset) for a in launch.arguments],
        constants=launch.parameters,
        work=Work(launch.rows, launch.shape, launch.cost.bytes_read + launch.cost.bytes_written),
    )


def run(device: "Device", *launches: Launch) -> None:
    """Runs launches one after another in a command buffer of their own, and waits."""
    with device.commands() as commands, commands.encoder() as encoder:
        for launch in launches:
            encode(launch, encoder, device)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)
