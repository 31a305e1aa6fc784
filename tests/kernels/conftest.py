"""One body for all devices: `device` is soft, soft:check and, on a Mac, metal."""

from collections.abc import Iterator

import pytest

from tinyrvllm.mtl import open_device
from tinyrvllm.mtl.api import MetalError
from tinyrvllm.mtl.device import Device

WORST: dict[str, tuple[float, str]] = {}  # kernel -> worst error of this session, and where


def _open(name: str) -> Iterator[Device]:
    try:
        device = open_device(name)
    except MetalError as error:
        pytest.skip(f"no {name} device on this machine: {error}")
    with device:
        yield device


@pytest.fixture(scope="session", params=["soft", "metal"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    """The devices that are fast enough for every shape."""
    yield from _open(request.param)


@pytest.fixture(scope="session")
def checking_device() -> Iterator[Device]:
    """soft:check: bounds, races, uninitialised reads and divergence are errors."""
    yield from _open("soft:check")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The table of worst errors against float64 numpy."""
    if WORST:
        terminalreporter.section("kernels: worst error against float64")
        for kernel, (error, where) in sorted(WORST.items()):
            terminalreporter.write_line(f"{kernel:24} {error:9.2e}  {where}")
