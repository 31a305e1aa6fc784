"""The devices that a runner is tested on, and the errors that were seen on real models."""

import platform
from collections.abc import Iterator

import pytest

from tinyrvllm import mtl

ERRORS: dict[str, tuple[float, float, int, int]] = {}  # worst, RMS, other tokens, rows


@pytest.fixture(scope="session", params=["soft", "metal"])
def device(request: pytest.FixtureRequest) -> Iterator[mtl.Device]:
    if request.param == "metal" and platform.system() != "Darwin":
        pytest.skip("this machine has no Metal: it does not run macOS")
    with mtl.open_device(request.param) as opened:
        yield opened


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Logits of real models beside the oracle's."""
    if ERRORS:
        terminalreporter.section("logits on the soft device, from the oracle's")
        for what, (worst, rms, others, rows) in ERRORS.items():
            terminalreporter.write_line(
                f"{what:32} worst {worst:.4f}, RMS {rms:.5f}; another argmax in {others} of {rows}"
            )
