"""TINYRVLLM_METAL_PROFILE and TINYRVLLM_TIMING."""

import time

import numpy as np
import pytest

from tests.mtl.test_bridge import KERNELS
from tinyrvllm import mtl
from tinyrvllm.mtl.profile import Work


def _run(name: str) -> np.ndarray:
    with mtl.open_device(name) as device, device.from_numpy(np.ones(64, np.float32)) as x:
        pipeline = device.library(KERNELS).pipeline("vector_add")
        n = np.uint32(64).tobytes()
        with device.commands() as commands, commands.encoder() as encoder:
            for _ in range(3):
                work = Work(rows=1, shape="64 x 1", nbytes=768)
                encoder.dispatch(pipeline, (2, 1, 1), (32, 1, 1), [x, x, x], n, work=work)
        return x.numpy(np.float32).copy()


def test_profile(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TINYRVLLM_METAL_PROFILE", "1")
    assert (_run("soft") == 8).all()
    head, row = capsys.readouterr().err.splitlines()
    assert head.split() == [
        "kernel",
        "rows",
        "N",
        "x",
        "K",
        "calls",
        "us/call",
        "GB/s",
        "threadgroups",
    ]
    assert row.split()[:6] == ["vector_add", "1", "64", "x", "1", "3"] and row.split()[-1] == "2"


def test_timing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TINYRVLLM_TIMING", "1")
    assert (_run("soft") == 8).all()
    assert "1 command buffers: recording" in capsys.readouterr().err


@pytest.mark.filterwarnings("error")
def test_what_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid of three dimensions; the time to record, which is part of what passes here."""
    monkeypatch.setenv("TINYRVLLM_METAL_PROFILE", "1")
    monkeypatch.setenv("TINYRVLLM_TIMING", "1")
    with mtl.open_device("soft") as device, device.buffer(24) as out:
        geometry = device.library(KERNELS).pipeline("geometry")
        start = time.perf_counter()
        with device.commands() as commands, commands.encoder() as encoder:
            encoder.dispatch(geometry, (2, 3, 4), (8, 1, 1), [out])
        passed = time.perf_counter() - start
        assert commands.dispatches == 1
        assert device.profile and device.timing
        assert list(device.profile.rows) == [("geometry", Work(rows=0, shape="", nbytes=0), 24)]
        assert all(0 <= recorded <= passed for recorded, _ in device.timing.seconds)
