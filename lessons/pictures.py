"""Pictures that the device makes itself: from the accesses it logged, the programs it recorded, and
the times it measured. Nothing here is drawn by hand.

    log = pictures.watch(device, launch)          # device: open_device("soft:check")
    pictures.save("copy", pictures.touched(log, "x", columns=32))

`save` writes a file and prints its name; the site shows it under the cell that made it. Stepped
pictures are SVG that moves by itself in any browser; plots are made by matplotlib ([plots]).
"""

import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import svg
from svg import CELL

from tinyrvllm.kernels.launch import Launch, run
from tinyrvllm.mtl import Device

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tinyrvllm.soft.cpu.access_log import Access, DispatchLog

MOST_STEPS = 40
LINE = 128  # bytes of a cache line, on Apple's GPUs
BANKS = 32  # of threadgroup memory, 4 bytes wide each: assumed, Apple documents no number


def save(name: str, picture: "str | Figure | None") -> Path | None:
    """Writes an SVG text, or a matplotlib figure, as `name`.svg and says where."""
    if picture is None:
        return None
    folder = Path(os.environ.get("TINYRVLLM_PICTURES", "build/pictures"))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.svg"
    if isinstance(picture, str):
        path.write_text(picture, encoding="utf-8")
    else:
        picture.savefig(path, bbox_inches="tight")
    print(f"picture: {path}")
    if "ipykernel" in sys.modules:
        from IPython.display import SVG, display

        display(SVG(filename=str(path)))
    return path


def watch(device: Device, *launches: Launch) -> "list[DispatchLog]":
    """Runs launches on the checking device; returns each one's accesses in the order of making.

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
    body, shown = [svg.grid(rows, columns)], frames[:MOST_STEPS]
    for number, frame in enumerate(shown):
        marks = []
        for access in frame:
            for e in range(access.offset // element, -(-(access.offset + access.size) // element)):
                row, column = divmod(e - first, columns)
                marks.append(svg.mark(row, column, access))
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
        body.append(svg.frame(number, len(shown), [*marks, svg.text(0, rows * CELL + 18, text)]))
    return svg.document(max(columns * CELL, 700), rows * CELL + 26, body)


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
    marks = [svg.mark(*divmod(e, columns), access, access.group) for e, access in last.items()]
    caption = (
        f"{name}: who wrote each element; the colour is the threadgroup, the number the thread"
    )
    return svg.document(
        max(columns * CELL, 700), rows * CELL + 26,
        [svg.grid(rows, columns), *marks, svg.text(0, rows * CELL + 18, caption)],
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
            f'<rect x="{x}" y="{y}" width="{size}" height="{size}" fill="{svg.colour(lane)}" '
            f'stroke="#fff"/><text x="{x + size / 2}" y="{y + 19}" text-anchor="middle">{lane}</text>'
            f'<text x="{x + size / 2}" y="{y + 35}" class="s" text-anchor="middle">[{element}]</text>'
        )
    body.append(svg.text(0, 8 * size + 18, "lane, and which of its two elements"))
    return svg.document(8 * size, 8 * size + 26, body)


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


def banks(cases: "dict[str, Sequence[Access]]") -> "Figure | None":
    """For each case, one step of a simdgroup: which bank each lane asks for."""
    figure = svg.figure(4.2 * len(cases), 4)
    if figure is None:
        return None
    for axes, (title, accesses) in zip(figure.subplots(1, len(cases), squeeze=False)[0],
                                       cases.items(), strict=True):  # fmt: skip
        frame = [a for a in accesses if a.thread < 32]
        image = np.zeros((32, BANKS))
        for a in frame:
            image[a.thread, a.offset // 4 % BANKS] = 1
        axes.imshow(image, cmap="Blues", vmin=0, vmax=1.3)
        axes.set(title=f"{title}: {max(bank_conflicts(frame))} turns", xlabel="bank", ylabel="lane")
    return figure
