"""Every case of the shape table against float64 numpy, on every device there is."""

import numpy as np
import pytest

from tinyrvllm.kernels import gemm_tensor, shapes
from tinyrvllm.kernels.cases import Case, check, prepare
from tinyrvllm.mtl.device import Device

from .conftest import WORST

# One case of each kernel, and the ones whose edges are easiest to get wrong.
CHECKED = [
    next(c for c in shapes.TABLE if c.kernel == kernel)
    for kernel in dict.fromkeys(c.kernel for c in shapes.TABLE)
] + [
    next(c for c in shapes.TABLE if str(c).startswith(start))
    for start in (
        "matvec kind=BF16 rows=8", "ksplit kind=BF16 rows=8", "gemm kind=BF16 rows=8",
        "gemm kind=Q8_0 rows=40 outputs=70 inputs=64", "attend_one contexts=(20, 700",
        "ksplit kind=Q8_0 rows=40 outputs=70 inputs=64", "attend_one contexts=(48,) heads=2",
        "ksplit rows=8 kind=Q8_0 outputs=130", "ksplit rows=8 kind=Q8_0 inputs=96",
        "ksplit rows=8 kind=F16 inputs=31", "ksplit kind=F16 rows=3 outputs=33",
        "matvec rows=3 kind=F16 outputs=33", "matvec rows=1 kind=Q8_0 inputs=1024",
        "matvec rows=3 kind=F16 inputs=33", "matvec rows=3 kind=Q8_0 inputs=1024",
        "matvec rows=2 kind=Q8_0 inputs=1024", "attend_unrotated contexts=(1, 2",
        "attend_unrotated contexts=(40", "attend_unrotated contexts=(5, 70)",
        "attend_spread contexts=(5, 300)",
        "attend_spread contexts=(70, 5) heads=4", "attend_spread contexts=(33, 600",
        "attend_spread contexts=(48,) heads=2", "rope rows=2",
        "matvec kind=Q8_0 rows=1 outputs=130 inputs=576 norm=True residual=True",
        "embed kind=F16 rows=3 columns=33", "embed kind=F16 rows=5", "embed kind=BF16",
        "embed kind=Q8_0 rows=3 columns=1120",
    )
]  # fmt: skip


def _check(case: Case, device: Device) -> None:
    if case.kernel == "gemm_tensor" and (reason := gemm_tensor.missing(device)):
        assert not device.name.startswith("Software"), reason
        pytest.skip(reason)
    error = check(case, device)
    WORST[case.kernel] = max(WORST.get(case.kernel, (0.0, "")), (error, str(case)))


@pytest.mark.parametrize("case", shapes.TABLE, ids=str)
def test_table(device: Device, case: Case) -> None:
    _check(case, device)


@pytest.mark.parametrize("case", CHECKED, ids=str)
def test_table_in_checking_mode(checking_device: Device, case: Case) -> None:
    _check(case, checking_device)


@pytest.mark.long
@pytest.mark.parametrize("case", shapes.LONG, ids=str)
def test_long_table(device: Device, case: Case) -> None:
    _check(case, device)


@pytest.mark.long
@pytest.mark.parametrize("case", [c for c in shapes.TABLE if c not in CHECKED], ids=str)
def test_rest_of_the_table_in_checking_mode(checking_device: Device, case: Case) -> None:
    _check(case, checking_device)


def test_a_forced_kernel_is_the_one_that_runs(device: Device) -> None:
    """No launch function falls back to another kernel: the launch names what was asked for."""
    for case in shapes.TABLE:
        if case.kernel in shapes.MATMULS and case["rows"] in (1, 40):
            for launch in prepare(case, device, np.random.default_rng(0)).launches:
                ran = launch.kernel.removesuffix("_half").removesuffix("_float")
                assert ran == case.kernel, f"{case} ran {launch.kernel}"


def test_a_wrong_result_is_reported_with_both_values(device: Device) -> None:
    """The table's own check must fail on a wrong answer."""
    case = next(c for c in shapes.TABLE if c.kernel == "add")
    prepared = prepare(case, device, np.random.default_rng(0))
    prepared.expected[0] += 1
    assert prepared.error() > prepared.tolerance
