"""The device of the tests that other folders share with this one."""

from collections.abc import Iterator

import pytest

from tinyrvllm.mtl import open_device
from tinyrvllm.mtl.device import Device


@pytest.fixture(scope="session")
def device() -> Iterator[Device]:
    with open_device("cuda") as opened:
        yield opened
