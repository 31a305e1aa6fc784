"""The walk-through for a newcomer, as a newcomer runs it."""

import json
import platform

import pytest

from tinyrvllm import doctor


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
