"""Everything about a device that a Mac owner can prove for us: `doctor --full`.

Seven parts, each a dictionary with "ok" in it: the messages we send, every shader compiled, the
ownership of an 8x8 matrix by lanes, every kernel against numpy, a model against the oracle, speed
against bandwidth, and steps against what `bench predict` claims. A part that fails does not stop the
next. The report holds nothing of its owner: no path, no name of user or machine.
"""

import json
import platform
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from tinyrvllm import __version__, hub
from tinyrvllm.benches.compare import as_text, compare
from tinyrvllm.benches.greedy import Greedy, prompt
from tinyrvllm.benches.predict import CHIPS, predictions
from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.kernels import bench, cases, gemm_tensor, shapes
from tinyrvllm.model import load
from tinyrvllm.mtl import Device, api
from tinyrvllm.mtl.library import SHADERS

Say = Callable[[str], None]
BATCHES = (1, 8)  # of the model's part
PROMPT_TOKENS, TOKENS = 64, 32
SHOWN = 5  # failures of a part; the report has all
LANES = """\
#include <metal_stdlib>
using namespace metal;

kernel void lane_ownership(device float *owned [[buffer(0)]],  // [32][2]
                           device const float *values [[buffer(1)]],  // [8][8]: 0, 1, ... 63
                           uint lane [[thread_index_in_simdgroup]]) {
    simdgroup_float8x8 matrix;
    simdgroup_load(matrix, values, 8);
    owned[2 * lane] = matrix.thread_elements()[0];
    owned[2 * lane + 1] = matrix.thread_elements()[1];
}
"""


def examine(
    device: Device, name: str, model: str, say: Say, only: Sequence[str]
) -> dict[str, Any]:
    """The report on an open device; `name` is what --device called it, `only` the parts wanted."""
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "messages": lambda: messages(device),
        "shaders": lambda: shaders(device),
        "lanes": lambda: lanes(device),
        "kernels": lambda: kernels(device),
        "model": lambda: against_oracle(name, model),
        "speed": lambda: speed(device),
        "prediction": lambda: prediction(device, name, model),
    }
    report: dict[str, Any] = {"machine": machine(device, name)}
    for part in only:
        start = time.perf_counter()
        try:
            found = parts[part]()
        except (TinyrvllmError, AssertionError, OSError) as error:
            found = {"ok": False, "summary": str(error)}
        found["seconds"] = round(time.perf_counter() - start, 1)
        report[part] = found
        mark = {True: "ok", False: "WRONG", None: "-"}[found["ok"]]
        say(f"  {part:11}{mark:7}{found['summary']}")
        for detail in list(found.get("failures", ()))[:SHOWN]:
            say(f"{'':20}{detail}")
    report["ok"] = all(found.get("ok") is not False for found in report.values())
    return report


def machine(device: Device, name: str) -> dict[str, Any]:
    """What a figure depends on, and nothing that tells whose machine it is."""
    return {
        "device": name,
        "gpu": device.name,
        "system": platform.system(),
        "architecture": platform.machine(),
        "os": ".".join(map(str, device.limits.os_version)),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "tinyrvllm": __version__,
        "date": time.strftime("%Y-%m-%d"),
        "limits": asdict(device.limits),
    }


def messages(device: Device) -> dict[str, Any]:
    """Opening the device has compared each type with the live runtime, or raised."""
    unverified = device.objc.runtime.unverified
    count = len(api.table())
    return {
        "ok": True,
        "summary": f"{count - len(unverified)} of {count} messages have the types this system says",
        "unverified": unverified,
    }


def shaders(device: Device) -> dict[str, Any]:
    """Compiles each file; the shape table's cases make the pipelines."""
    failures, seconds = [], {}
    paths = sorted(SHADERS.glob("*.metal"))
    lacking = gemm_tensor.missing(device) if device.limits.os_version < (26, 0) else ""
    if lacking:  # Metal 4's tensors, which nothing needs
        paths = [path for path in paths if path.stem != "gemm_tensor"]
    for path in tqdm(paths, desc="shaders", leave=False, disable=None):
        start = time.perf_counter()
        try:
            device.library(path.stem)
        except TinyrvllmError as error:
            failures.append(str(error))
        seconds[path.name] = round(time.perf_counter() - start, 3)
    return {
        "ok": not failures,
        "summary": f"{len(paths) - len(failures)} of {len(paths)} files compile"
        + (f"; without {lacking}" if lacking else ""),
        "failures": failures,
        "compile_seconds": seconds,
    }


def lanes(device: Device) -> dict[str, Any]:
    """Which two elements of an 8x8 matrix each lane holds; Apple does not document it."""
    library = device.library_from_source(LANES, name="lane_ownership.metal")
    with (
        device.from_numpy(np.zeros(64, np.float32)) as owned,
        device.from_numpy(np.arange(64, dtype=np.float32)) as values,
        library,
    ):
        with device.commands() as commands, commands.encoder() as encoder:
            encoder.dispatch(
                library.pipeline("lane_ownership"),
                groups=(1, 1, 1),
                threads=(32, 1, 1),
                buffers=[owned, values],
            )
        elements = owned.numpy(np.float32, (32, 2)).astype(int)
    complete = sorted(elements.ravel()) == list(range(64))
    usual = np.array_equal(elements, usual_lanes())
    return {
        "ok": complete,
        "summary": "as on every Apple GPU known so far" if usual else "an ownership new to us",
        "elements": elements.tolist(),  # [lane]: row * 8 + column, twice
    }


def usual_lanes() -> np.ndarray:
    """int [32, 2]: what others have found on M1 to M4, in the form row * 8 + column."""
    lane = np.arange(32)
    quad = lane // 4
    row = (quad & 4) + (lane // 2) % 4
    column = (quad & 2) * 2 + (lane % 2) * 2
    return np.stack([8 * row + column, 8 * row + column + 1], axis=1)


def kernels(device: Device) -> dict[str, Any]:
    """The whole shape table against numpy in float64."""
    worst: dict[str, float] = {}
    failures = []
    table = shapes.runnable(shapes.TABLE, device)
    for case in tqdm(table, desc="kernels", leave=False, disable=None):
        try:
            worst[case.kernel] = max(worst.get(case.kernel, 0.0), cases.check(case, device))
        except (AssertionError, TinyrvllmError) as error:
            failures.append(f"{case}: {error}")
    count = len(table)
    return {
        "ok": not failures,
        "summary": f"{count - len(failures)} of {count} cases agree with numpy",
        "failures": failures,
        "worst_error": worst,
    }


def against_oracle(name: str, model: str) -> dict[str, Any]:
    """Greedy tokens beside the oracle's."""
    loaded = load(hub.resolve(model))
    found = compare(loaded, name, BATCHES, PROMPT_TOKENS, TOKENS)
    same = sum(a == b for a, b in found.checksums.values())
    return {
        "ok": not found.has_bug,
        "summary": f"tokens equal at {same} of {len(BATCHES)} batch sizes; largest difference of a "
        f"logit {found.max_error:.2g}",
        "text": as_text(found),
    }


def speed(device: Device) -> dict[str, Any]:
    """The machine's copy bandwidth, and each kernel's share of it."""
    limit = bench.copy_bandwidth(device)
    rows = [
        bench.measure(case, device)
        for case in tqdm(
            shapes.runnable(shapes.BENCH, device), desc="speed", leave=False, disable=None
        )
    ]
    best = max(rows, key=lambda row: row.gigabytes_per_second)
    return {
        "ok": None,  # a figure, not a verdict
        "summary": f"copies {limit:.1f} GB/s; {best.kernel} reaches "
        f"{best.gigabytes_per_second / limit:.0%} of it",
        "copy_gigabytes_per_second": round(limit, 2),
        "kernels": [
            asdict(row) | {"share_of_copy": round(row.gigabytes_per_second / limit, 3)}
            for row in rows
        ],
    }


def chip_of(gpu: str) -> str | None:
    """ "Apple M4 Max" -> "m4max", the name that `bench predict` knows, if it does."""
    chip = "".join(re.sub(r"^apple\s+", "", gpu.lower()).split())
    return chip if chip in CHIPS else None


def prediction(device: Device, name: str, model: str) -> dict[str, Any]:
    """Decode steps, beside `bench predict`'s claim for this chip."""
    path = hub.resolve(model)
    loaded = load(path)
    greedy = Greedy(loaded, name, max(BATCHES), PROMPT_TOKENS + TOKENS)
    measured = {}
    for batch in BATCHES:
        prompts = [prompt(0, i, PROMPT_TOKENS, greedy.vocab_size) for i in range(batch)]
        greedy.generate(prompts, 2)  # compiles and warms up
        measured[batch] = round(greedy.generate(prompts, TOKENS).ms_per_step, 3)
    chip = chip_of(device.name)
    claims = predictions(path, [chip], list(BATCHES), PROMPT_TOKENS + TOKENS // 2) if chip else []
    claim = {row.batch: (row.low_ms, row.ms, row.high_ms) for row in claims}
    told = ", ".join(
        f"batch {batch}: {ms:.1f} ms"
        + (f" (claimed {claim[batch][0]:.1f}-{claim[batch][2]:.1f})" if batch in claim else "")
        for batch, ms in measured.items()
    )
    return {
        "ok": None,
        "summary": told + ("" if chip else "; nothing is claimed for this device"),
        "chip": chip,
        "measured_ms": measured,
        "claimed_ms": claim,  # low, expected, high
    }


def row(report: dict[str, Any]) -> str:
    """A report as a row of docs/apple.md's table."""
    about = report["machine"]
    done = "; ".join(
        f"{part}: {found['summary']}"
        for part, found in report.items()
        if isinstance(found, dict) and "summary" in found
    )
    verdict = "well" if report["ok"] else "not well"
    cells = (about["gpu"], about["os"], f"`doctor --full` {about['tinyrvllm']}, {about['date']}")
    return "| " + " | ".join(cell.replace("|", "/") for cell in (*cells, f"{verdict}: {done}")) + " |"


def save(report: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
