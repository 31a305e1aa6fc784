"""The NVIDIA GPU, where there is one."""

from collections.abc import Iterator

import pytest

from tinyrvllm.mtl import open_device
from tinyrvllm.mtl.device import Device
from tinyrvllm.soft.cuda import driver


@pytest.fixture(scope="session")
def device() -> Iterator[Device]:
    try:
        driver.cuda()
    except driver.NoDriver as reason:
        pytest.skip(str(reason))
    with open_device("cuda") as opened:
        yield opened
