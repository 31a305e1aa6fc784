"""The walk-through for a newcomer, as a newcomer runs it."""

import getpass
import json
import platform
from pathlib import Path

import numpy as np
import pytest

from tests.tiny_models import write_model
from tinyrvllm import doctor, examination
from tinyrvllm.kernels import bench, shapes


def test_walk_through(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--device", "soft"]) == 0
    text = capsys.readouterr().out
    for expected in ("Software Metal on this CPU", "32768 bytes", "kernel void vector_add",
                     "999 + 1 = 1000", "This machine is well."):  # fmt: skip
        assert expected in text


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main(["--device", "soft:check", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"] and report["max_difference"] == 0.0 and report["unverified"] == []
    assert report["limits"]["max_threadgroup_memory"] == 32768


def test_a_device_that_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    if platform.system() == "Darwin":
        pytest.skip("this machine has Metal")
    assert doctor.main(["--device", "metal"]) == 2
    assert "doctor: expected macOS for device 'metal'" in capsys.readouterr().err


def test_a_wrong_result_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "SHADER", doctor.SHADER.replace("a[i] + b[i]", "a[i] - b[i]"))
    assert doctor.main(["--device", "soft"]) == 1
    assert "this machine is not well" in capsys.readouterr().out


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A tiny model's path, with few kernels and little memory to examine."""
    wanted = ("add", "rmsnorm")
    monkeypatch.setattr(shapes, "TABLE", [c for c in shapes.TABLE if c.kernel in wanted][:4])
    monkeypatch.setattr(shapes, "BENCH", [c for c in shapes.TABLE if c.kernel == "rmsnorm"][:1])
    monkeypatch.setattr(bench, "CACHE_BYTES", 1 << 20)
    return write_model(tmp_path / "tiny.gguf", "llama")


def full(model: Path, report: Path, *more: str) -> int:
    return doctor.main(
        ["--device", "soft", "--full", "--model", str(model), "--report", str(report), *more]
    )


def test_everything_is_examined(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    assert full(small, path) == 0
    text = capsys.readouterr().out
    for expected in ("messages   ok", "4 of 4 cases agree", "lanes      ok", "model      ok",
                     "speed      -", "nothing is claimed for this device"):  # fmt: skip
        assert expected in text
    report = json.loads(path.read_text())
    assert report["ok"] and set(report["prediction"]["measured_ms"]) == {"1", "8"}
    assert doctor.main(["--row", str(path)]) == 0
    assert capsys.readouterr().out.startswith("| Software Metal on this CPU")


def test_the_report_has_no_personal_data(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    assert full(small, path, "--json") == 0
    text = path.read_text()
    assert json.loads(capsys.readouterr().out) == json.loads(text)
    for private in (str(tmp_path), str(Path.home()), platform.node(), f"/{getpass.getuser()}"):
        assert private not in text


def test_a_wrong_kernel_is_named_and_the_rest_goes_on(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(case: object, device: object) -> float:
        raise AssertionError("error 1e0, expected at most 1e-6")

    monkeypatch.setattr(examination.cases, "check", wrong)
    path = tmp_path / "report.json"
    assert full(small, path) == 1
    text = capsys.readouterr().out
    assert "kernels    WRONG  0 of 4 cases" in text and "model      ok" in text
    assert "error 1e0" in text and "NOT well" in text
    assert len(json.loads(path.read_text())["kernels"]["failures"]) == 4


def test_a_report_that_cannot_be_written_or_read(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert full(small, tmp_path / "none" / "report.json") == 2
    assert "cannot write the report" in capsys.readouterr().err
    path = tmp_path / "other.json"
    path.write_text("[]")
    assert doctor.main(["--row", str(path)]) == 2
    assert "is no report of doctor --full" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gpu", "chip"), [("Apple M4 Max", "m4max"), ("Apple M1", "m1"), ("Software Metal", None)]
)
def test_chips_by_the_device_s_name(gpu: str, chip: str | None) -> None:
    assert examination.chip_of(gpu) == chip


def test_usual_lanes_are_each_element_once() -> None:
    lanes = examination.usual_lanes()
    assert np.array_equal(np.sort(lanes.ravel()), np.arange(64))
    assert lanes[0].tolist() == [0, 1] and lanes[31].tolist() == [62, 63]
