"""Pictures that the device makes itself: from the accesses it logged, the programs it recorded, and
the times it measured. Nothing here is drawn by hand.

    log = pictures.watch(device, launch)          # device: open_device("soft:check")
    pictures.save("copy", pictures.touched(log, "x", columns=32))

`save` writes a file and prints its name; the site shows it under the cell that made it. Stepped
pictures are SVG that moves by itself in any browser; plots are made by matplotlib ([plots]).
"""

import html
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tinyrvllm.kernels.launch import Launch, run
from tinyrvllm.mtl import Device
from tinyrvllm.runner.program import Program

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tinyrvllm.soft.cpu.access_log import Access, DispatchLog

CELL = 22  # pixels of an element
SECONDS = 1.2  # that a step is shown
MOST_STEPS = 40
LINE = 128  # bytes of a cache line, on Apple's GPUs
BANKS = 32  # of threadgroup memory, 4 bytes wide each: assumed, Apple documents no number


def save(name: str, picture: "str | Figure") -> Path:
    """Writes an SVG text, or a matplotlib figure, as `name`.svg and says where."""
    folder = Path(os.environ.get("TINYRVLLM_PICTURES", "build/pictures"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.svg"
    if isinstance(picture, str):
        path.write_text(picture, encoding="utf-8")
    else:
        picture.savefig(path, bbox_inches="tight")
    print(f"picture: {path}")
    return path


def watch(device: Device, *launches: Launch) -> "list[DispatchLog]":
    """Runs launches on the checking device; returns each one's accesses in the order they were made.

    Raises ValueError on a device that does not log: only "soft:check" does.
    """
    from tinyrvllm.soft.cpu import access_log

    with access_log.record() as log:
        run(device, *launches)
    if len(log.dispatches) != len(launches):
        raise ValueError(
            f"expected a log of {len(launches)} dispatches, found {len(log.dispatches)}: "
            f"open_device('soft:check') logs accesses, {device.name!r} does not"
        )
    return log.dispatches


# ---- who touches what


def steps(accesses: "Iterable[Access]") -> "list[list[Access]]":
    """Accesses that a simdgroup makes together: each lane's first, each lane's second, ...

    Between barriers; grouped by source line, so that branches stay apart.
    """
    turn: dict[tuple[int, int, int, int, str], int] = defaultdict(int)
    found: dict[tuple[int, int, int, int, str], list[Access]] = defaultdict(list)
    for access in accesses:
        line = (access.group, access.thread, access.step, access.line, access.verb)
        key = (access.group, access.step, turn[line], access.line, access.verb)
        turn[line] += 1
        found[key].append(access)
    return list(found.values())


def lines_touched(accesses: "Sequence[Access]") -> float:
    """Cache lines a simdgroup touches in one step, over the fewest that hold these bytes."""
    worst = 0.0
    for simdgroup in {a.thread // 32 for a in accesses}:
        mine = [a for a in accesses if a.thread // 32 == simdgroup]
        lines = {b // LINE for a in mine for b in (a.offset, a.offset + a.size - 1)}
        distinct = {(a.offset, a.size) for a in mine}
        worst = max(worst, len(lines) / -(-sum(size for _, size in distinct) // LINE))
    return worst


def touched(
    log: "DispatchLog", name: str, columns: int, element: int = 4, group: int | None = 0
) -> str:
    """A stepped SVG of one buffer or threadgroup variable: in each step the elements that threads
    touch, with the thread's number. columns: elements in a row; element: its bytes."""
    accesses = log.accesses(name, group)
    if not accesses:
        names = sorted({a.name for a in log.rows})
        raise ValueError(f"nothing touched {name!r} in threadgroup {group}; there is {names}")
    frames = steps(accesses)
    first = min(a.offset for a in accesses) // element // columns * columns
    end = max(a.offset + a.size for a in accesses)
    rows = -(-(-(-end // element) - first) // columns)
    body, shown = [_grid(rows, columns)], frames[:MOST_STEPS]
    for number, frame in enumerate(shown):
        marks = []
        for access in frame:
            for e in range(access.offset // element, -(-(access.offset + access.size) // element)):
                row, column = divmod(e - first, columns)
                marks.append(_mark(row, column, access))
        only = frame[0]
        lanes = "simdgroups" if only.whole_simdgroup else "threads"
        count = len({a.thread for a in frame})
        efficiency = (
            f", {lines_touched(frame):.3g} times the cache lines that their bytes would fill"
            if only.memory == "device" and not only.whole_simdgroup
            else ""
        )
        text = (
            f"step {number + 1} of {len(frames)}, {only.file}:{only.line}: {count} {lanes} "
            f"{only.verb} {name}{efficiency}; {only.step} barriers passed"
        )
        body.append(_frame(number, len(shown), [*marks, _text(0, rows * CELL + 18, text)]))
    return _svg(max(columns * CELL, 700), rows * CELL + 26, body)


def owners(log: "DispatchLog", name: str, columns: int, element: int = 4) -> str:
    """An SVG of one buffer: each element in the colour of the threadgroup that wrote it last, with
    the number of the thread."""
    last = {
        e: access
        for access in log.accesses(name)
        if access.verb != "read"
        for e in range(access.offset // element, -(-(access.offset + access.size) // element))
    }
    rows = max(last) // columns + 1
    marks = [_mark(*divmod(e, columns), access, access.group) for e, access in last.items()]
    caption = (
        f"{name}: who wrote each element; the colour is the threadgroup, the number the thread"
    )
    return _svg(
        max(columns * CELL, 700), rows * CELL + 26,
        [_grid(rows, columns), *marks, _text(0, rows * CELL + 18, caption)],
    )  # fmt: skip


def tile_owners(device: Device) -> str:
    """An SVG of an 8x8 simdgroup matrix: which lane holds which elements, as the device says."""
    source = """
        #include <metal_stdlib>
        #include <metal_simdgroup_matrix>
        using namespace metal;
        kernel void who(device float *out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
            simdgroup_float8x8 tile;
            tile.thread_elements()[0] = 2 * lane;
            tile.thread_elements()[1] = 2 * lane + 1;
            simdgroup_store(tile, out, 8);
        }"""
    with device.buffer(256) as out:
        pipeline = device.library_from_source(source, "who.metal").pipeline("who")
        with device.commands() as commands, commands.encoder() as encoder:
            encoder.dispatch(pipeline, (1, 1, 1), (32, 1, 1), [out])
        held = out.numpy(np.float32, (8, 8)).astype(int)
    size, body = 44, []
    for (row, column), value in np.ndenumerate(held):
        lane, element = divmod(int(value), 2)
        x, y = column * size, row * size
        body.append(
            f'<rect x="{x}" y="{y}" width="{size}" height="{size}" fill="{_colour(lane)}" '
            f'stroke="#fff"/><text x="{x + size / 2}" y="{y + 19}" text-anchor="middle">{lane}</text>'
            f'<text x="{x + size / 2}" y="{y + 35}" class="s" text-anchor="middle">[{element}]</text>'
        )
    body.append(_text(0, 8 * size + 18, "lane, and which of its two elements"))
    return _svg(8 * size, 8 * size + 26, body)


# ---- threadgroup memory's banks


def bank_conflicts(accesses: "Iterable[Access]") -> list[int]:
    """For each step of each simdgroup: turns that the busiest bank needs (1: no conflict)."""
    turns = []
    for frame in steps(a for a in accesses if a.memory == "threadgroup"):
        for simdgroup in {a.thread // 32 for a in frame}:
            words = {
                word
                for a in frame
                if a.thread // 32 == simdgroup
                for word in range(a.offset // 4, (a.offset + a.size + 3) // 4)
            }
            busiest = np.bincount([word % BANKS for word in words], minlength=BANKS).max()
            turns.append(int(busiest))
    return turns


def banks(cases: "dict[str, Sequence[Access]]") -> "Figure":
    """For each case, one step of a simdgroup: which bank each lane asks for."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(cases), 4))
    for axes, (title, accesses) in zip(figure.subplots(1, len(cases), squeeze=False)[0],
                                       cases.items(), strict=True):  # fmt: skip
        frame = [a for a in accesses if a.thread < 32]
        image = np.zeros((32, BANKS))
        for a in frame:
            image[a.thread, a.offset // 4 % BANKS] = 1
        axes.imshow(image, cmap="Blues", vmin=0, vmax=1.3)
        axes.set(title=f"{title}: {max(bank_conflicts(frame))} turns", xlabel="bank", ylabel="lane")
    return figure


# ---- costs


def roofline(
    points: "dict[str, tuple[float, float]]", gigabytes: float, gigaflops: float, machine: str
) -> "Figure":
    """points: name -> (floating-point operations a byte, GFLOP/s). The roof is the machine's:
    GB/s times intensity, up to its GFLOP/s."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5))
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
                f'fill="{_colour(hash_of(launch.kernel))}"><title>{html.escape(launch.shape)}</title>'
                f'</rect><text x="{x + 5}" y="{y + 18}" class="s">{launch.kernel}</text>'
                f'<text x="{x + 5}" y="{y + 34}" class="s">{_bytes(launch) / 1024:.0f} KB</text>'
            )
        body.append(_text(x, tallest * 50 + 14, f"phase {first + number}"))
        x += width
    return _svg(int(x), tallest * 50 + 24, body)


def schedule(steps: "Sequence[tuple[int, Sequence[tuple[str, int]]]]") -> str:
    """An SVG of an engine's steps, [(step, [(request, tokens)])]: a row each request, a column each
    step; in it the tokens that the request fed, dark where they are a piece of its prompt."""
    requests = list(dict.fromkeys(name for _, work in steps for name, _ in work))
    left, body = 90, []
    for row, name in enumerate(requests):
        body.append(_text(0, row * CELL + 16, name))
    for column, (_, work) in enumerate(steps):
        for name, tokens in work:
            x, y = left + column * CELL, requests.index(name) * CELL
            fill = "hsl(210 60% 85%)" if tokens == 1 else "hsl(210 60% 65%)"
            body.append(
                f'<rect x="{x}" y="{y}" width="{CELL - 1}" height="{CELL - 2}" fill="{fill}"/>'
                f'<text x="{x + CELL / 2}" y="{y + 15}" class="s" text-anchor="middle">{tokens}</text>'
            )
    bottom = len(requests) * CELL
    body.append(_text(0, bottom + 16, "tokens of a step, summed:"))
    for column, (_, work) in enumerate(steps):
        total = sum(tokens for _, tokens in work)
        x = left + column * CELL + CELL / 2
        body.append(f'<text x="{x}" y="{bottom + 34}" class="s" text-anchor="middle">{total}</text>')
    return _svg(left + len(steps) * CELL, bottom + 40, body)


def timeline(device: Device, program: Program) -> "Figure":
    """A step as it was measured: each dispatch in a command buffer of its own, one after another."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.5))
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
    from tinyrvllm.kernels.launch import encode

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


# ---- SVG


def _svg(width: int, height: int, body: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-4 -4 {width + 8} {height + 8}" '
        f'width="{width + 8}" font-family="sans-serif" font-size="13">'
        f'<style>.s{{font-size:11px}}</style><rect x="-4" y="-4" width="{width + 8}" '
        f'height="{height + 8}" fill="#fff"/>{"".join(body)}</svg>\n'
    )


def _grid(rows: int, columns: int) -> str:
    return "".join(
        f'<rect x="{c * CELL}" y="{r * CELL}" width="{CELL}" height="{CELL}" fill="#f4f4f4" '
        'stroke="#ddd"/>'
        for r in range(rows)
        for c in range(columns)
    )


def _mark(row: int, column: int, access: "Access", colour: int | None = None) -> str:
    x, y = column * CELL, row * CELL
    number = access.thread // 32 if access.whole_simdgroup else access.thread
    fill = _colour(number if colour is None else colour)
    return (
        f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="{fill}" stroke="#888"/>'
        f'<text x="{x + CELL / 2}" y="{y + 15}" class="s" text-anchor="middle">{number}</text>'
    )


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x}" y="{y}">{html.escape(text)}</text>'


def _frame(number: int, count: int, parts: Sequence[str]) -> str:
    """Parts that are seen only while it is this step's turn."""
    if count == 1:
        return "".join(parts)
    shown = ";".join("1" if other == number else "0" for other in range(count))
    return (
        f'<g opacity="{int(number == 0)}"><animate attributeName="opacity" calcMode="discrete" '
        f'values="{shown}" dur="{count * SECONDS:g}s" repeatCount="indefinite"/>'
        f"{''.join(parts)}</g>"
    )


def _colour(number: int) -> str:
    """Neighbouring numbers get colours that are far apart."""
    hue: Any = number * 137.508 % 360  # the golden angle
    return f"hsl({hue:.0f} 70% 75%)"
