"""Apple's limits, what a launch declares against what the compiler sees, and refused shapes."""

import numpy as np
import pytest

from tinyrvllm.kernels import gemm, matvec, shapes
from tinyrvllm.kernels.case_matmul import Kind
from tinyrvllm.kernels.cases import check, prepare
from tinyrvllm.kernels.kv_cache import KvLayout
from tinyrvllm.kernels.launch import KernelError, run, whole
from tinyrvllm.kernels.matmul import FusedNorm, Matmul
from tinyrvllm.kernels.quant import Matrix, row_bytes
from tinyrvllm.mtl.device import Device, open_device
from tinyrvllm.soft import objc_double
from tinyrvllm.soft.objc_double.engine import CpuEngine


def launches_of_the_table(device: Device) -> dict:
    """One launch for each pipeline that the table needs."""
    found = {}
    for case in shapes.TABLE:
        for launch in prepare(case, device, np.random.default_rng(0)).launches:
            found.setdefault((launch.shader, launch.kernel, launch.constants), launch)
    return found


def test_declared_threads_and_memory_are_the_compilers(device: Device) -> None:
    """max_total_threads_per_threadgroup equals the launch, and costs state the true memory."""
    for launch in launches_of_the_table(device).values():
        pipeline = device.library(launch.shader).pipeline(launch.kernel, dict(launch.constants))
        threads = launch.threads[0] * launch.threads[1] * launch.threads[2]
        assert pipeline.max_threads == threads, launch.kernel
        assert threads <= 512, f"{launch.kernel} would not run where a pipeline takes 512 threads"
        assert pipeline.static_threadgroup_memory <= 32768, launch.kernel
        assert len(launch.arguments) + 1 <= 31 and len(launch.parameters) <= 4096, launch.kernel
        # The compiler may pad between variables.
        spare = pipeline.static_threadgroup_memory - launch.cost.threadgroup_bytes
        assert 0 <= spare <= 64, f"{launch.kernel} has {spare} bytes more than its cost says"
        moved = (launch.cost.bytes_read + launch.cost.bytes_written, launch.cost.bytes_written)
        assert min(moved) > 0, f"{launch.kernel} states no bytes"


def test_refused_shapes_say_what_was_expected(device: Device) -> None:
    small = whole(device.buffer(64))
    with pytest.raises(KernelError, match="multiple of 32, found 40"):
        row_bytes(Kind.Q8_0, 40)
    with pytest.raises(KernelError, match="found Q2_K: convert"):
        row_bytes(Kind.Q2_K, 256)
    with pytest.raises(KernelError, match="expected 256 bytes, found 64"):
        Matrix(small, Kind.F32, 8, 8)
    weight = Matrix(small, Kind.F32, 4, 4)
    with pytest.raises(KernelError, match="x: expected 80 bytes, found 64"):
        Matmul(small, weight, small, 5)
    with pytest.raises(KernelError, match="at least 1 row"):
        Matmul(small, weight, small, 0)
    with pytest.raises(KernelError, match="one type and shape"):
        Matmul(small, weight, small, 1, up=Matrix(small, Kind.F16, 4, 4))
    with pytest.raises(KernelError, match="matvec's"):
        gemm.launch(Matmul(small, weight, small, 1, norm=FusedNorm(small, small, 1, 1e-5)))
    with pytest.raises(KernelError, match="power of two, found 12"):
        KvLayout(1, 12, 1, 64)
    with pytest.raises(KernelError, match="1 to 256, found 512"):
        KvLayout(1, 16, 1, 512)
    with pytest.raises(KernelError, match="bytes inside a span of 64"):
        small.part(60, 8)


def test_wider_simdgroups_are_refused() -> None:
    with open_device("soft") as device:
        device.objc.send.threadExecutionWidth = lambda _: 64  # as on an Intel Mac
        [launch] = prepare(shapes.TABLE[0], device, np.random.default_rng(0)).launches[:1]
        with pytest.raises(KernelError, match="simdgroups of 32 threads.*found 64"):
            run(device, launch)


@pytest.mark.parametrize("inputs", [576, 960, 1536, 2560])
def test_no_lane_idles_at_smollm2s_widths(inputs: int) -> None:
    assert matvec.lane_utilisation(inputs) == 1.0


def test_costs_count_bytes_and_operations(device: Device) -> None:
    """Hand-counted: Q8_0 576 x 1536, 2 rows with a residual."""
    case = shapes.case("matvec", kind="Q8_0", rows=2, outputs=576, inputs=1536, residual=True)
    cost = prepare(case, device, np.random.default_rng(0)).launches[0].cost
    assert cost.bytes_read == 576 * 1536 // 32 * 34 + 2 * 1536 * 4 + 2 * 576 * 4
    assert cost.bytes_written == 2 * 576 * 4
    assert cost.flops == 2 * 2 * 576 * 1536
    assert (cost.barriers, cost.threadgroup_bytes) == (0, 0)


@pytest.mark.parametrize("threads", [512, 896])
def test_every_kernel_runs_where_a_pipeline_takes_few_threads(threads: int) -> None:
    """A heavy kernel's pipeline may take 512 or 896 threads instead of 1,024."""
    machine = objc_double.Machine(max_pipeline_threads=threads)
    with Device(objc_double.metal(CpuEngine(False), machine=machine)) as device:
        for kernel in dict.fromkeys(case.kernel for case in shapes.TABLE):
            check(next(case for case in shapes.TABLE if case.kernel == kernel), device)
