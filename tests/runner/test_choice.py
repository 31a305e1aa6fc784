"""Which matmul kernel a step runs: the row thresholds, and Metal 4's tensors."""

import numpy as np
import pytest

from tests.runner.sequences import Model, Sequence, batch_of
from tests.tiny_models import write_model
from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.kernels import gemm_tensor
from tinyrvllm.kernels.shapes import MATMULS
from tinyrvllm.mtl import Device
from tinyrvllm.runner.metal import MetalRunner
from tinyrvllm.runner.options import Options


def run(model: Model, device: Device, rows: int, options: Options) -> tuple[np.ndarray, set[str]]:
    """Logits of a prompt of `rows` tokens, and the matmul kernels that computed them."""
    runner = MetalRunner(model, device, 16, options=options)
    ids = [3 + i * 7 % 200 for i in range(rows)]
    logits = runner.run(batch_of([(Sequence(ids, list(range(16))), rows)], 16))
    ran = {k.removesuffix("_half").removesuffix("_float") for k in runner.report().kernels}
    return logits, ran & set(MATMULS)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(write_model(tmp_path_factory.mktemp("model") / "tiny.gguf"))


@pytest.mark.parametrize(
    ("rows", "options", "kernel"),
    [
        (4, Options(), "matvec"),
        (8, Options(), "ksplit"),
        (32, Options(), "gemm"),
        (4, Options(matvec_rows=2), "ksplit"),
        (4, Options(matvec_rows=0, ksplit_rows=0), "gemm"),
        (32, Options(matvec_rows=32), "matvec"),
        (32, Options(ksplit_rows=32), "ksplit"),
        (32, Options(tensor_ops=True), "gemm_tensor"),
        (8, Options(tensor_ops=True), "ksplit"),
    ],
)  # fmt: skip
def test_thresholds(
    model: Model, device: Device, rows: int, options: Options, kernel: str
) -> None:
    if options.tensor_ops and (reason := gemm_tensor.missing(device)):
        assert not device.name.startswith("Software"), reason
        pytest.skip(reason)
    logits, kernels = run(model, device, rows, options)
    assert kernels == {kernel}
    expected, _ = run(model, device, rows, Options(matvec_rows=32))
    np.testing.assert_allclose(logits, expected, atol=0.02 * np.abs(expected).max())


def test_tensors_that_a_device_lacks_are_an_error(
    model: Model, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemm_tensor, "why_not", lambda device: "this device has no Metal 4")
    with pytest.raises(TinyrvllmError, match="--tensor-ops: this device has no Metal 4"):
        MetalRunner(model, device, 16, options=Options(tensor_ops=True))
