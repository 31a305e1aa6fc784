"""The little SVG that pictures.py needs."""

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tinyrvllm.soft.cpu.access_log import Access

CELL = 22  # pixels of an element
SECONDS = 1.2  # that a step is shown


def document(width: int, height: int, body: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-4 -4 {width + 8} {height + 8}" '
        f'width="{width + 8}" font-family="sans-serif" font-size="13">'
        f'<style>.s{{font-size:11px}}</style><rect x="-4" y="-4" width="{width + 8}" '
        f'height="{height + 8}" fill="#fff"/>{"".join(body)}</svg>\n'
    )


def grid(rows: int, columns: int) -> str:
    return "".join(
        f'<rect x="{c * CELL}" y="{r * CELL}" width="{CELL}" height="{CELL}" fill="#f4f4f4" '
        'stroke="#ddd"/>'
        for r in range(rows)
        for c in range(columns)
    )


def mark(row: int, column: int, access: "Access", group: int | None = None) -> str:
    x, y = column * CELL, row * CELL
    number = access.thread // 32 if access.whole_simdgroup else access.thread
    fill = colour(number if group is None else group)
    return (
        f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="{fill}" stroke="#888"/>'
        f'<text x="{x + CELL / 2}" y="{y + 15}" class="s" text-anchor="middle">{number}</text>'
    )


def text(x: float, y: float, words: str) -> str:
    return f'<text x="{x}" y="{y}">{html.escape(words)}</text>'


def frame(number: int, count: int, parts: Sequence[str]) -> str:
    """Parts that are seen only while it is this step's turn."""
    if count == 1:
        return "".join(parts)
    shown = ";".join("1" if other == number else "0" for other in range(count))
    return (
        f'<g opacity="{int(number == 0)}"><animate attributeName="opacity" calcMode="discrete" '
        f'values="{shown}" dur="{count * SECONDS:g}s" repeatCount="indefinite"/>'
        f"{''.join(parts)}</g>"
    )


def colour(number: int) -> str:
    """Neighbouring numbers get colours that are far apart."""
    hue: Any = number * 137.508 % 360  # the golden angle
    return f"hsl({hue:.0f} 70% 75%)"


def figure(width: float, height: float) -> "Figure | None":
    """An empty matplotlib figure, in inches; where there is no matplotlib a line says so."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print('no picture: matplotlib is not installed (pip install -e ".[plots]")')
        return None
    return Figure(figsize=(width, height))
