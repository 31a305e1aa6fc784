"""The devices that a runner is tested on."""

import platform
from collections.abc import Iterator

import pytest

from tinyrvllm import mtl


@pytest.fixture(scope="session", params=["soft", "metal"])
def device(request: pytest.FixtureRequest) -> Iterator[mtl.Device]:
    if request.param == "metal" and platform.system() != "Darwin":
        pytest.skip("this machine has no Metal: it does not run macOS")
    with mtl.open_device(request.param) as opened:
        yield opened
