"""The bridge's own tests, on an NVIDIA GPU."""

from tests.cuda import gpu

gpu.require()

from tests.mtl.test_bridge import (  # noqa: F401
    test_asymmetric_grid,
    test_concurrent_dispatches_with_barriers,
    test_device_says_what_it_is,
    test_diagnostics_name_file_and_line,
    test_function_constants,
    test_offsets,
    test_pipelines_and_libraries_are_kept,
    test_products_are_not_fused,
    test_vector_add,
    test_worker_threads,
    test_wrapped_file,
    test_wrapped_memory_is_shared,
)
from tests.mtl.test_indirect import test_replay, test_residency_set  # noqa: F401
from tests.mtl.test_recording import test_replay as test_recorded_sends  # noqa: F401
