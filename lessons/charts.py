"""Pictures of costs: what was measured, and what a program looks like before it runs.

pictures.save("roofline", charts.roofline(points, gigabytes, gigaflops, machine))
"""

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import svg
from svg import CELL

from tinyrvllm.kernels.launch import Launch, encode
from tinyrvllm.mtl import Device
from tinyrvllm.runner.program import Program

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def roofline(
    points: "dict[str, tuple[float, float]]", gigabytes: float, gigaflops: float, machine: str
) -> "Figure | None":
    """points: name -> (floating-point operations a byte, GFLOP/s). The roof is the machine's:
    GB/s times intensity, up to its GFLOP/s."""
    figure = svg.figure(7, 4.5)
    if figure is None:
        return None
    axes = figure.subplots()
    least = min(0.1, *(x for x, _ in points.values()))
    most = max(100.0, *(x for x, _ in points.values()))
    intensity = np.geomspace(least, most * 2, 200)
    axes.loglog(intensity, np.minimum(intensity * gigabytes, gigaflops), color="black")
    for number, (name, (x, y)) in enumerate(points.items()):
        axes.loglog([x], [y], "o", color=f"C{number % 10}", label=name)
    axes.legend(fontsize=7, loc="lower right")
    axes.set(
        title=f"{machine}: {gigabytes:.0f} GB/s, {gigaflops:.0f} GFLOP/s",
        xlabel="operations a byte", ylabel="GFLOP/s",
    )  # fmt: skip
    axes.grid(visible=True, which="both", alpha=0.2)
    return figure


def layer(program: Program, first: int, count: int) -> str:
    """An SVG of `count` phases of a recorded program from number `first` on: a column each, the
    dispatches that may overlap above one another, as wide as their share of the bytes."""
    phases = program.phases[first : first + count]
    heaviest = max(sum(_bytes(x) for x in phase) for phase in phases)
    body, x, tallest = [], 0.0, max(map(len, phases))
    for number, phase in enumerate(phases):
        width = max(100.0, 240.0 * max(_bytes(x) for x in phase) / heaviest)
        for level, launch in enumerate(phase):
            y = level * 50
            body.append(
                f'<rect x="{x}" y="{y}" width="{width - 6}" height="44" rx="4" '
                f'fill="{svg.colour(hash_of(launch.kernel))}"><title>{html.escape(launch.shape)}</title>'
                f'</rect><text x="{x + 5}" y="{y + 18}" class="s">{launch.kernel}</text>'
                f'<text x="{x + 5}" y="{y + 34}" class="s">{_bytes(launch) / 1024:.0f} KB</text>'
            )
        body.append(svg.text(x, tallest * 50 + 14, f"phase {first + number}"))
        x += width
    return svg.document(int(x), tallest * 50 + 24, body)


def schedule(steps: "Sequence[tuple[int, Sequence[tuple[str, int]]]]") -> str:
    """An SVG of an engine's steps, [(step, [(request, tokens)])]: a row each request, a column each
    step; in it the tokens that the request fed, dark where they are a piece of its prompt."""
    requests = list(dict.fromkeys(name for _, work in steps for name, _ in work))
    left, body = 90, []
    for row, name in enumerate(requests):
        body.append(svg.text(0, row * CELL + 16, name))
    for column, (_, work) in enumerate(steps):
        for name, tokens in work:
            x, y = left + column * CELL, requests.index(name) * CELL
            fill = "hsl(210 60% 85%)" if tokens == 1 else "hsl(210 60% 65%)"
            body.append(
                f'<rect x="{x}" y="{y}" width="{CELL - 1}" height="{CELL - 2}" fill="{fill}"/>'
                f'<text x="{x + CELL / 2}" y="{y + 15}" class="s" text-anchor="middle">{tokens}</text>'
            )
    bottom = len(requests) * CELL
    body.append(svg.text(0, bottom + 16, "tokens of a step, summed:"))
    for column, (_, work) in enumerate(steps):
        total = sum(tokens for _, tokens in work)
        x = left + column * CELL + CELL / 2
        body.append(
            f'<text x="{x}" y="{bottom + 34}" class="s" text-anchor="middle">{total}</text>'
        )
    return svg.document(left + len(steps) * CELL, bottom + 40, body)


def timeline(device: Device, program: Program) -> "Figure | None":
    """A step as it was measured: each dispatch in a command buffer of its own."""
    figure = svg.figure(9, 3.5)
    if figure is None:
        return None
    axes = figure.subplots()
    kernels = list(dict.fromkeys(launch.kernel for launch in program.launches))
    now = 0.0
    for launch in program.launches:
        microseconds = 1e6 * seconds(device, launch)
        axes.barh(kernels.index(launch.kernel), microseconds, left=now, height=0.8)
        now += microseconds
    axes.set_yticks(range(len(kernels)), kernels, fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="microseconds", title=f"{len(program.launches)} dispatches, {now / 1e3:.1f} ms")
    return figure


def seconds(device: Device, *launches: Launch, repeats: int = 3) -> float:
    """The device's time for launches in one command buffer: the best of some repeats."""
    best = float("inf")
    for _ in range(repeats + 1):  # the first one compiles
        with device.commands() as commands, commands.encoder() as encoder:
            for launch in launches:
                encode(launch, encoder, device)
        best = min(best, commands.gpu_seconds)
    return best


def hash_of(text: str) -> int:
    """A small number that stays the same from run to run."""
    return sum(ord(letter) * (place + 1) for place, letter in enumerate(text))


def _bytes(launch: Launch) -> int:
    return launch.cost.bytes_read + launch.cost.bytes_written
