"""Pictures show what the device did."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tinyrvllm import mtl
from tinyrvllm.kernels.cases import case, prepare
from tinyrvllm.soft.cpu import access_log

LESSONS = Path(__file__).parent.parent.parent / "lessons"
TRANSPOSE = """
#include <metal_stdlib>
using namespace metal;
kernel void turn(device float *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
    threadgroup float tile[32 * STRIDE];
    for (uint row = 0; row < 32; row++) tile[row * STRIDE + i] = i;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint column = 0; column < 32; column++) out[column * 32 + i] = tile[i * STRIDE + column];
}
"""


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(LESSONS))
    monkeypatch.setenv("TINYRVLLM_PICTURES", str(tmp_path))


@pytest.fixture(scope="module")
def device() -> Iterator[mtl.Device]:
    with mtl.open_device("soft:check") as opened:
        yield opened


def test_touched_shows_a_step_for_each_turn(device: mtl.Device, tmp_path: Path) -> None:
    import pictures

    prepared = prepare(case("rmsnorm", rows=1, columns=130), device, np.random.default_rng(0))
    (log,) = pictures.watch(device, *prepared.launches)
    path = pictures.save("norm", pictures.touched(log, "x", columns=32))
    assert path == tmp_path / "norm.svg"
    text = path.read_text()
    assert text.count("<animate ") == 4  # two loops of two turns: 128 elements, then two
    assert "step 1 of 4" in text
    assert "128 threads read x" in text
    assert "2 threads read x" in text
    with pytest.raises(ValueError, match="nothing touched 'z'"):
        pictures.touched(log, "z", columns=32)


def test_owners_are_the_threads_that_wrote(device: mtl.Device) -> None:
    import pictures

    prepared = prepare(case("rmsnorm", rows=2, columns=5), device, np.random.default_rng(0))
    (log,) = pictures.watch(device, *prepared.launches)
    numbers = re.findall(r">(\d+)</text>", pictures.owners(log, "y", columns=5))
    assert [int(n) for n in numbers] == [0, 1, 2, 3, 4] * 2


def test_each_lane_owns_two_elements_of_a_tile(device: mtl.Device) -> None:
    import pictures

    lanes = re.findall(r'text-anchor="middle">(\d+)</text>', pictures.tile_owners(device))
    assert sorted(map(int, lanes)) == sorted([*range(32)] * 2)


@pytest.mark.parametrize(("stride", "turns"), [(32, 32), (33, 1), (36, 4)])
def test_bank_conflicts(device: mtl.Device, stride: int, turns: int) -> None:
    import pictures

    source = TRANSPOSE.replace("STRIDE", str(stride))
    pipeline = device.library_from_source(source, "turn.metal").pipeline("turn")
    with (
        device.buffer(4096) as out,
        access_log.record() as log,
        device.commands() as commands,
        commands.encoder() as encoder,
    ):
        encoder.dispatch(pipeline, (1, 1, 1), (32, 1, 1), [out])
    accesses = log.dispatches[0].accesses("tile")
    assert pictures.bank_conflicts(a for a in accesses if a.verb == "write") == [1] * 32
    assert set(pictures.bank_conflicts(a for a in accesses if a.verb == "read")) == {turns}


def test_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib: pip install .[plots]")
    import charts
    import pictures

    figure = charts.roofline({"matvec": (2.0, 3.0)}, 10, 100, "a machine")
    assert "svg" in pictures.save("roof", figure).read_text()[:500]
