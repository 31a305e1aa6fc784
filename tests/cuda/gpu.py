"""Whether this machine has an NVIDIA GPU."""

import pytest

from tinyrvllm.soft.cuda import driver


def require() -> None:
    """Skips the module that asks, saying what is missing."""
    try:
        driver.cuda()
    except driver.BrokenDriver:
        raise
    except driver.NoDriver as reason:
        pytest.skip(str(reason), allow_module_level=True)
