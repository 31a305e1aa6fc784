"""What every lesson starts with: the device that was asked for, and tables of what was measured."""

import argparse
import atexit
import gc
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType

from tinyrvllm import shapes
from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.mtl import Device, open_device

DEVICES = ("soft", "soft:check", "metal", "cuda")
_KEPT: list[Device] = []
_FOLDERS: list[tempfile.TemporaryDirectory] = []


def device_name() -> str:
    """--device of the command line, else $TINYRVLLM_DEVICE (notebooks set it), else "metal" on
    Apple silicon and "soft" elsewhere."""
    is_mac = sys.platform == "darwin" and platform.machine() == "arm64"
    default = os.environ.get("TINYRVLLM_DEVICE", "metal" if is_mac else "soft")
    if "ipykernel" in sys.modules:  # in a notebook the command line is Jupyter's
        return default
    parser = argparse.ArgumentParser(
        epilog="A lesson prints what it finds; read it beside its file."
    )
    parser.add_argument(
        "--device",
        default=default,
        choices=DEVICES,
        help="where kernels run (default: %(default)s)",
    )
    return str(parser.parse_args().device)


def device() -> Device:
    """The device that was asked for, open; a line says which. Ends the program where there is
    none."""
    name = device_name()
    try:
        opened = open_device(name)
    except TinyrvllmError as reason:
        sys.exit(f"error: {reason}")
    print(f"device: {opened.name}")
    _KEPT.append(opened)
    return opened


@atexit.register
def _end() -> None:
    """The lesson's buffers go before their devices, which would complain about them."""
    vars(sys.modules["__main__"]).clear()
    gc.collect()
    _KEPT.clear()


def checking_device() -> Device:
    """The software device with every check on, whatever the lesson's own device is."""
    opened = open_device("soft:check")
    _KEPT.append(opened)
    return opened


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints columns as wide as they need be: the first to the left, numbers to the right."""
    text = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in text) for column in range(len(head))]
    for row in text:
        first, *rest = (
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join([first, *rest]).rstrip())


def agree(
    what: str,
    found: np.ndarray,
    expected: np.ndarray,
    tolerance: float = 1e-4,
    source: str = "numpy",
) -> None:
    """Says how far two arrays are apart, relative to the largest value. Ends the lesson where it is
    more than the tolerance."""
    scale = float(np.abs(expected).max()) or 1.0
    apart = float(np.abs(found.astype(np.float64) - expected).max()) / scale
    print(f"{what}: {apart:.1e} from {source}")
    if not apart <= tolerance:  # a NaN is no agreement, either
        sys.exit(
            f"error: expected at most {tolerance:.0e}: this lesson is broken, please report it"
        )


def small_model(layers: int = 4) -> Path:
    """The file of a model with random weights, small enough for any device: it writes nonsense."""
    shape = shapes.Shape("llama", layers, 192, 512, heads=6, kv_heads=2, vocab=2048, rope_base=1e4)
    folder = tempfile.TemporaryDirectory(prefix="tinyrvllm-", ignore_cleanup_errors=True)
    _FOLDERS.append(folder)
    path = Path(folder.name) / "small.gguf"
    shapes.write(path, shape, GGMLQuantizationType.Q8_0)
    return path
