"""The kernels as a GPU of many cores gets them, on the software device: geometry, loads ahead."""

from collections.abc import Iterator

import pytest
from gguf import GGMLQuantizationType

from tests.cuda.sanitize import for_many_cores
from tinyrvllm.kernels import matvec
from tinyrvllm.kernels.cases import Case, case, check
from tinyrvllm.kernels.launch import whole
from tinyrvllm.kernels.matmul import Matmul
from tinyrvllm.kernels.quant import Matrix
from tinyrvllm.mtl import Device, open_device

SIMDGROUPS = 2048
CASES = [
    case(kernel, **shape, simdgroups=SIMDGROUPS)
    for kernel, shape in (
        # 16-byte loads
        ("matvec", {"kind": "F16", "rows": 3, "outputs": 70, "inputs": 576, "norm": True}),
        # two whole steps ahead, one, and one with four outputs a lane
        ("matvec", {"kind": "Q8_0", "rows": 1, "outputs": 70, "inputs": 1024, "norm": True}),
        ("matvec", {"kind": "Q4_K", "rows": 1, "outputs": 70, "inputs": 512, "bias": True}),
        ("matvec", {"kind": "F16", "rows": 1, "outputs": 8200, "inputs": 512}),
        ("ksplit", {"kind": "Q8_0", "rows": 16, "outputs": 70, "inputs": 512, "bias": True}),
    )
]


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    with open_device("soft") as opened:
        yield opened


@pytest.mark.parametrize("wanted", CASES, ids=str)
def test_case(device: Device, wanted: Case) -> None:
    check(wanted, device)


@pytest.mark.long
@pytest.mark.parametrize("wanted", for_many_cores(), ids=str)
def test_table(device: Device, wanted: Case) -> None:
    check(wanted, device)


@pytest.mark.parametrize(
    ("kind", "rows", "outputs", "inputs", "expected"),
    [
        ("F16", 1, 4096, 4096, (32, 4, 1)),  # whole steps, and one is many bytes
        ("Q8_0", 1, 4096, 4096, (32, 4, 2)),  # two are as many
        ("Q8_0", 2, 4096, 4096, (32, 4, 2)),
        ("Q8_0", 1, 4096, 1536, (32, 4, 1)),  # three steps
        ("Q8_0", 1, 6144, 4096, (32, 4, 1)),  # plenty of outputs
        ("F16", 1, 1024, 4096, (32, 1, 1)),
        ("F16", 1, 576, 576, (32, 1, 0)),
        ("F16", 1, 49152, 576, (4, 2, 0)),  # plenty of outputs: no lane idles
        ("F16", 1, 100, 64, (4, 1, 0)),
    ],
)
def test_geometry(
    device: Device, kind: str, rows: int, outputs: int, inputs: int, expected: tuple[int, int, int]
) -> None:
    with device.buffer(2 * outputs * inputs) as w, device.buffer(4 * rows * outputs) as y:
        weight = Matrix(whole(w), GGMLQuantizationType[kind], outputs, inputs)
        matmul = Matmul(whole(w), weight, whole(y), rows)
        lanes, per_lane = matvec.geometry(matmul, SIMDGROUPS)
        assert (lanes, per_lane, matvec.steps_ahead(matmul, lanes, SIMDGROUPS)) == expected
