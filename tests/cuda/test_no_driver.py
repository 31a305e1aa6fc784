"""A machine without an NVIDIA GPU says so, and takes no other device instead."""

import pytest

from tinyrvllm.mtl import MetalError, open_device
from tinyrvllm.soft.cuda import driver


@pytest.fixture(autouse=True)
def no_driver() -> None:
    try:
        driver.cuda()
    except driver.NoDriver:
        return
    pytest.skip("this machine has an NVIDIA driver")


def test_the_device_is_refused() -> None:
    with pytest.raises(MetalError, match=r"no NVIDIA driver|pip install \"tinyrvllm\[cuda\]\""):
        open_device("cuda")
