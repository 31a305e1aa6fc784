"""The forward pass as a GPU of many cores gets it: other geometry, attention that rotates, weights
put in order by the device. On `soft` here, on an NVIDIA GPU in tests/cuda/test_models.py.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from tests.runner.sequences import Model, Sequence, batch_of
from tests.runner.test_metal import F32_TOLERANCE, NAMES, TOLERANCE, load
from tests.tiny_models import write_model
from tinyrvllm import TinyrvllmError, mtl
from tinyrvllm.kernels.attention import Attention, prefill
from tinyrvllm.kernels.kv_cache import KvLayout
from tinyrvllm.kernels.launch import KernelError, Span
from tinyrvllm.kernels.matmul import Matmul
from tinyrvllm.kernels.quant import Matrix, can_be_apart, joined
from tinyrvllm.kernels.rope import Unrotated
from tinyrvllm.runner.metal import MetalRunner
from tinyrvllm.runner.numpy import NumpyRunner
from tinyrvllm.runner.options import Options
from tinyrvllm.runner.tensors import DeviceTensors

MANY = Options(simdgroups=2048, ksplit_rows=32, indirect=True)
EXACT = replace(MANY, kv_f32=True, matvec_rows=128)


@pytest.mark.parametrize("name", NAMES)
def test_every_architecture(device: mtl.Device, name: str) -> None:
    """A prompt, then two sequences that decode side by side, one of them beside a prompt first."""
    model, ids, logits = load(name)
    runner = MetalRunner(model, device, 24, block_size=4, options=EXACT)
    a, b = (Sequence(ids[i], list(range(i, 24, 2)), state_slot=i) for i in range(2))
    for work in ([(a, 15)], [(a, 1), (b, 9)], *[[(a, 1), (b, 1)]] * 3, [(b, 1)]):
        rows = [logits[s.state_slot][s.done : s.done + n] for s, n in work]
        found = runner.run(batch_of(work, 4))
        np.testing.assert_allclose(found, np.concatenate(rows), atol=F32_TOLERANCE)


def test_attention_rotates_where_all_decode(device: mtl.Device) -> None:
    model, ids, _ = load("llama")
    layers = model.config.num_layers
    for options, expected in (
        (MANY, [layers, 0, layers]),
        (replace(MANY, batch_invariant=True), [layers] * 3),
    ):
        runner = MetalRunner(model, device, 10, block_size=4, options=options)
        sequence = Sequence(ids[0], list(range(10)))
        counts = []
        for n in (5, 1, 3):
            runner.run(batch_of([(sequence, n)], 4))
            counts.append(runner.report().kernels.get("rope_and_store", 0))
        assert counts == expected


@pytest.fixture(scope="module")
def q8_0(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Rows of 512 and 1,024 weights, and of 128 in the attention's projection."""
    path = tmp_path_factory.mktemp("models") / "q8_0.gguf"
    kind = GGMLQuantizationType.Q8_0
    return Model(write_model(path, type=kind, hidden=512, ff=1024, head_dim=32, num_heads=4))


@pytest.mark.parametrize("window", [1 << 30, 16 << 10])
def test_weights_in_the_device_s_order(
    device: mtl.Device, q8_0: Model, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """Bytes: a row's weights, then its scales; what has other rows is as in the file.

    The file passes through a window at a time, here also through one that no matrix fits into.
    """
    monkeypatch.setattr("tinyrvllm.runner.tensors.WINDOW", window)
    tensors = DeviceTensors(q8_0, device, arranged=True)
    assert len({span.buffer for span in tensors.spans.values()}) == 1
    apart = 0
    for name, tensor in q8_0.file.tensors.items():
        span = tensors.spans[name]
        found = span.buffer.numpy(np.uint8, (span.nbytes,), span.offset)
        rows = np.asarray(q8_0.file.memory[tensor.offset :][: tensor.nbytes])
        if can_be_apart(tensor.type, tensor.shape[-1]):
            blocks = rows.reshape(tensor.shape[0], -1, 34)
            parts = [blocks[:, :, 2:], blocks[:, :, :2]]
            rows = np.hstack([part.reshape(len(blocks), -1) for part in parts]).ravel()
            apart += 1
            assert tensors.matrix(name).apart
        np.testing.assert_array_equal(found, rows)
    assert 0 < apart < len(q8_0.file.tensors)


def test_a_model_with_weights_in_order(device: mtl.Device, q8_0: Model) -> None:
    """From the table of tokens to the logits, with every kernel that multiplies."""
    runner = MetalRunner(q8_0, device, 20, options=MANY)
    oracle = NumpyRunner(q8_0, 20)
    ids = [3 + i * 7 % 200 for i in range(80)]
    sequences = [Sequence(ids, list(range(6))) for _ in range(2)]
    for n in (1, 3, 8, 30, 1):
        found, expected = (
            r.run(batch_of([(s, n)], 16)) for r, s in zip((runner, oracle), sequences, strict=True)
        )
        np.testing.assert_allclose(found, expected, atol=TOLERANCE)


def test_a_type_that_nothing_multiplies(
    device: mtl.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not copied, however large, and named when it is wanted: at the latest by the runner."""
    monkeypatch.setattr("tinyrvllm.runner.tensors.WINDOW", 1 << 10)
    kind, rows = GGMLQuantizationType.Q8_0, (4096, 512 // 256 * 66)  # of IQ2_XXS
    strange = (np.zeros(rows, np.uint8), GGMLQuantizationType.IQ2_XXS)
    path = write_model(
        tmp_path / "strange.gguf", type=kind, hidden=512, ff=4096, num_heads=4, num_layers=1,
        tensors={"blk.0.ffn_gate.weight": strange},
    )  # fmt: skip
    model = Model(path)
    assert "blk.0.ffn_gate.weight" not in DeviceTensors(model, device, arranged=True).spans
    with pytest.raises(TinyrvllmError, match="type IQ2_XXS"):
        MetalRunner(model, device, 4, options=MANY)


def test_a_model_that_is_longer_than_a_buffer_stays_as_it_is(
    device: mtl.Device, q8_0: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbytes = sum(tensor.nbytes for tensor in q8_0.file.tensors.values())
    limits = replace(device.limits, max_buffer_length=nbytes)
    monkeypatch.setattr(device, "limits", limits)
    assert not DeviceTensors(q8_0, device, arranged=True).arranged


def test_what_does_not_go_together_is_refused(device: mtl.Device) -> None:
    """Joined matrices that are far apart, rows that cannot be, and rotation where none is done."""
    kind = GGMLQuantizationType.Q8_0
    with device.buffer(1 << 16) as buffer:
        near, far = (Span(buffer, at, 1 << 16) for at in (0, 1 << 32))
        assert joined([Matrix(near, kind, 8, 512), Matrix(far, kind, 8, 512)]) is None
        apart = Matrix(near, kind, 8, 512, apart=True)
        assert joined([apart, Matrix(near, kind, 8, 512)]) is None
        with pytest.raises(KernelError, match="one type and shape, found Q8_0, apart 8 x 512"):
            Matmul(near, apart, near, 1, up=Matrix(near, kind, 8, 512))
        for span, columns in ((near, 256), (Span(buffer, 8, 1 << 16), 512)):
            with pytest.raises(KernelError, match="rows of whole steps of 512 at multiples of 16"):
                Matrix(span, kind, 8, columns, apart=True)
        layout = KvLayout(1, 16, 1, 8)
        unrotated = Unrotated(near, near, near, 8, False, (8, 8))
        attend = Attention(
            near, near, near, near, near, near, near, layout, 1, 1, 1, 1.0, spread=True,
            unrotated=unrotated,
        )  # fmt: skip
        with pytest.raises(KernelError, match="all sequences have one row"):
            prefill(attend, 2)
        with pytest.raises(KernelError, match="expected spread"):
            replace(attend, spread=False)
        with pytest.raises(KernelError, match="rope_dim: expected an even number up to"):
            replace(attend, unrotated=replace(unrotated, rope_dim=10))


def test_a_file_without_such_weights_is_not_copied(device: mtl.Device) -> None:
    model, _, _ = load("llama")
    assert not DeviceTensors(model, device, arranged=True).arranged
