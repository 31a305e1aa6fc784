"""`bench kernels` measures what it says it measures."""

import json

import pytest

from tinyrvllm.kernels import bench
from tinyrvllm.kernels.shapes import case
from tinyrvllm.mtl.device import Device


def test_a_row_of_the_bench(device: Device) -> None:
    row = bench.measure(case("matvec", kind="Q8_0", rows=1, outputs=70, inputs=96), device, True)
    assert (row.kernel, row.rows, row.shape) == ("matvec", 1, "Q8_0 70 x 96")
    moved = 70 * 3 * 34 + 4 * 96 + 4 * 70
    assert row.gigabytes_per_second == pytest.approx(moved / row.microseconds / 1e3)
    assert row.numpy_ratio is not None and row.numpy_ratio > 0


def test_cold_runs_walk_over_more_than_the_caches(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "CACHE_BYTES", 5 * 70 * 3 * 34)
    small = case("matvec", kind="Q8_0", rows=1, outputs=70, inputs=96)
    (launch,) = bench.prepare(small, device, bench.np.random.default_rng(0)).launches
    copies = bench.copies_of(launch, device, hot=False)
    assert len({id(copy.arguments[1].span.buffer) for copy in copies}) == 5
    assert len(bench.copies_of(launch, device, hot=True)) == 1


def test_thresholds_come_from_who_wins() -> None:
    """matvec wins up to 4 rows by the product over shapes, ksplit up to 8, gemm at 16."""
    times = {
        "matvec": {1: (1, 1), 4: (2, 3), 8: (9, 9), 16: (9, 9)},
        "ksplit": {1: (3, 3), 4: (3, 2.5), 8: (4, 4), 16: (6, 6)},
        "gemm": {1: (9, 9), 4: (9, 9), 8: (9, 9), 16: (6, 5)},
    }
    rows = [
        bench.Row(kernel, n, shape, time, 1.0, 1.0, None, 1.0, 1.0)
        for kernel, counts in times.items()
        for n, both in counts.items()
        for shape, time in zip(("wide", "tall"), both, strict=True)
    ]
    table = bench.losses(rows)
    assert table["tall"][4] == {"matvec": 1.2, "ksplit": 1.0, "gemm": 3.6}
    assert bench.thresholds(table) == (4, 8)
    assert bench.thresholds(bench.losses([r for r in rows if r.kernel == "gemm"])) == (0, 0)


def test_command_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    small = [case("rmsnorm", rows=2, columns=33), case("add", count=1000)]
    monkeypatch.setattr(bench, "BENCH", small)
    monkeypatch.setattr(bench, "CACHE_BYTES", 1 << 16)
    monkeypatch.setattr(bench, "ROUNDS", 2)
    assert bench.main(["--json", "--kernel", "rmsnorm"]) == 0
    assert json.loads(capsys.readouterr().out)["kernel"] == "rmsnorm"
    assert bench.main([]) == 0
    printed = capsys.readouterr().out
    assert "add" in printed
    head, legend = printed.splitlines()[0], bench.LEGEND.strip().splitlines()
    for column in (line[:11].strip() for line in legend):
        assert column in head, f"the legend explains {column!r}, which is no column"
