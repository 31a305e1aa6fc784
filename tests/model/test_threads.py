"""The pools outlive a fork."""

import os
import subprocess
import sys

import pytest

FORKS = """
import os
from tinyrvllm.model.threads import pool
assert pool("sums").submit(sum, [1, 2]).result() == 3
child = os.fork()
if child == 0:
    os._exit(pool("sums").submit(sum, [3, 4]).result())
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert pool("sums").submit(sum, [5, 6]).result() == 11
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_has_threads_of_its_own() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKS]
    subprocess.run(command, check=True, timeout=300)
