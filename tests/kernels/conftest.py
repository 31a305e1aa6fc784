"""One body for all devices: `device` is soft, soft:check and, on a Mac, metal."""

import platform
from collections.abc import Iterator

import pytest

from tinyrvllm.mtl import open_device
from tinyrvllm.mtl.device import Device

DEVICES = ["soft", "metal"] if platform.system() == "Darwin" else ["soft"]
WORST: dict[str, tuple[float, str]] = {}  # kernel -> worst error of this session, and where


@pytest.fixture(scope="session", params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """The devices that are fast enough for every shape."""
    with open_device(request.param) as opened:
        yield opened


@pytest.fixture(scope="session")
def checking_device() -> Iterator[Device]:
    """soft:check: bounds, races, uninitialised reads and divergence are errors."""
    with open_device("soft:check") as opened:
        yield opened


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table of worst errors against float64 numpy."""
    if WORST:
        terminalreporter.section("kernels: worst error against float64")
        for kernel, (error, where) in sorted(WORST.items()):
            terminalreporter.write_line(f"{kernel:24} {error:9.2e}  {where}")
