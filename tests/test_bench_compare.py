"""`bench compare` as a test: no token may differ where the oracle had a clear winner."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import REAL_MODELS
from tests.tiny_models import write_model
from tinyrvllm.benches import compare
from tinyrvllm.benches.compare import Report
from tinyrvllm.benches.greedy import Greedy
from tinyrvllm.model import Model, load
from tinyrvllm.runner.numpy import NumpyRunner

MODEL = "TINYRVLLM_TEST_MODEL"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(write_model(tmp_path_factory.mktemp("compare") / "tiny.gguf", "llama"))


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_soft_writes_the_oracles_tokens(architecture: str, tmp_path: Path) -> None:
    model = load(write_model(tmp_path / "tiny.gguf", architecture))
    report = compare.compare(model, "soft", [1, 4, 8], prompt_tokens=20, tokens=12)
    assert not report.has_bug, compare.as_text(report)
    assert 0 < report.rms_error < 0.01 * report.standard_deviation
    assert report.rms_error < report.max_error < 0.05 * report.standard_deviation


@pytest.mark.long
@pytest.mark.real_model
@pytest.mark.parametrize("name", [*filter(None, [os.environ.get(MODEL)])] or REAL_MODELS)
def test_a_model_file(name: str, real_model: Callable[[str], Path]) -> None:
    """Our real models; or the file that TINYRVLLM_TEST_MODEL names, on TINYRVLLM_TEST_DEVICE."""
    path = real_model(name) if name in REAL_MODELS else Path(name)
    device = os.environ.get("TINYRVLLM_TEST_DEVICE", "soft")
    report = compare.compare(load(path), device, [1, 8], prompt_tokens=32, tokens=16)
    assert not report.has_bug, compare.as_text(report)


def broken(monkeypatch: pytest.MonkeyPatch, change: "Change", model: Model) -> Report:
    """compare with a device "soft" that is the oracle, its logits changed: (rows [R, V], size)."""
    real = compare.Greedy

    def opened(model: Model, device: str, size: int, length: int) -> Greedy:
        greedy = real(model, "cpu", size, length)
        if device == "soft":
            assert isinstance(greedy.runner, NumpyRunner)
            run = greedy.runner.run
            greedy.runner.run = lambda batch: change(run(batch), batch.num_seqs)
        return greedy

    monkeypatch.setattr(compare, "Greedy", opened)
    return compare.compare(model, "soft", [1, 4], prompt_tokens=10, tokens=16)


class Change:
    """What a device does to the oracle's logits."""

    def __call__(self, logits: np.ndarray, size: int) -> np.ndarray:
        return logits


class Noise(Change):
    """Errors of up to `size` on every logit."""

    def __init__(self, size: float) -> None:
        self.size = size
        self.rng = np.random.default_rng(1)

    def __call__(self, logits: np.ndarray, size: int) -> np.ndarray:
        return logits + self.rng.uniform(-self.size, self.size, logits.shape).astype(np.float32)


class SwapInBatches(Change):
    """A bug of the batched kernels only: the fourth sequence's best two logits change places."""

    def __call__(self, logits: np.ndarray, size: int) -> np.ndarray:
        if size == 4:
            second, best = np.argsort(logits[3])[-2:]
            logits[3, [second, best]] = logits[3, [best, second]]
        return logits


def test_no_difference(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    report = broken(monkeypatch, Change(), model)
    assert (report.flips, report.max_error, report.has_bug) == ([], 0.0, False)
    assert all(a == b for a, b in report.checksums.values())


def test_a_small_error_flips_coins(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    report = broken(monkeypatch, Noise(0.03), model)
    assert report.flips, "a seed whose best two logits come close"
    assert {flip.verdict for flip in report.flips} == {"coin flip"}
    assert all(flip.margin <= 2 * report.max_error for flip in report.flips)
    assert not report.has_bug
    assert "coin flip: batch" in compare.as_text(report)


def test_a_clear_winner_that_lost_is_a_bug(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    report = broken(monkeypatch, SwapInBatches(), model)
    assert report.max_error == 0
    assert [(flip.batch, flip.sequence) for flip in report.flips] == [(4, 3)]
    assert report.flips[0].verdict == "bug"
    assert report.has_bug


def test_an_error_too_large_to_be_rounding_is_a_bug(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = broken(monkeypatch, Noise(0.5), model)
    assert not report.trusted
    assert report.has_bug
    assert "more than rounding explains" in compare.as_text(report)


def test_the_exit_status_says_it(
    model: Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compare, "compare", lambda *arguments: Report("soft", rms_error=1.0))
    flags = ["--model", str(model.file.path), "--prompt-tokens", "9", "--json"]
    assert compare.main(flags) == 1
    assert '"has_bug": true' in capsys.readouterr().out
