"""A pytest plugin (`-p tests.soft.in_checking_mode`): every kernel is compiled and run with checks.

A report is an error of the test that ran the kernel; a warning is not.
"""

import functools
from collections.abc import Sequence

from tinyrvllm.soft.cpu import execute, library


def _run(dispatches: Sequence[execute.Dispatch], threads: int | None = None) -> None:
    reports = _unchecked_run(dispatches, threads)
    faults = [str(report) for report in reports if not report.warning]
    if faults:
        raise AssertionError("\n".join(faults))


_unchecked_run, execute.run = execute.run, _run  # type: ignore[assignment]
library.compile_library = functools.partial(library.compile_library, check=True)
