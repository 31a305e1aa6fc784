"""The bridge on GNUstep's Objective-C runtime: `make test-gnu` (Debian: libgnustep-base1.28)."""

import gc

import pytest

from tests.mtl import scenario
from tests.mtl.gnu_runtime import GnuRuntime, libraries
from tinyrvllm import mtl


@pytest.fixture(autouse=True)
def _gnustep() -> None:
    try:
        libraries()
    except OSError as missing:
        pytest.skip(f"this machine has no GNUstep: {missing}")


def test_scenario() -> None:
    """The same lines, the same results, no leaks: every count is GNU's."""
    scenario.run(mtl, GnuRuntime)
    gc.collect()
