"""Fixtures that every test may use."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tinyrvllm import hub


@pytest.fixture(scope="session")
def real_model() -> Callable[[str], Path]:
    """`real_model("smollm2-135m")` is the path of that model's file, fetched once and cached."""
    return hub.resolve
