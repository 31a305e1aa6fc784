"""The shape table of all kernels, on an NVIDIA GPU."""

from tests.cuda import gpu

gpu.require()

from tests.kernels.test_table import (  # noqa: F401
    test_a_forced_kernel_is_the_one_that_runs,
    test_a_wrong_result_is_reported_with_both_values,
    test_long_table,
    test_table,
)
