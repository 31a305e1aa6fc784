"""Tensors against the configuration, and every tensor type the `gguf` package can dequantise."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize as gguf_dequantize

from tests.tiny_models import ARCHITECTURES, write_model
from tinyrvllm.model.config import ModelConfig
from tinyrvllm.model.dequantize import dequantize
from tinyrvllm.model.gguf_file import GGUFError, GGUFFile
from tinyrvllm.model.weights import Weights, can_dequantize


def open_weights(path: Path) -> Weights:
    file = GGUFFile(path)
    return Weights(file, ModelConfig.from_gguf(file))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_tensor_of_every_architecture_has_its_place(
    tmp_path: Path, architecture: str, tied: bool
) -> None:
    path = write_model(tmp_path / "model.gguf", architecture, head_dim=16, tied=tied)
    weights = open_weights(path)
    with GGUFFile(path) as file:
        assert {name: info.shape for name, info in file.tensors.items()} == weights.shapes
    assert ("output.weight" in weights.shapes) == (not tied)


@pytest.mark.real_model
@pytest.mark.parametrize("name", ["smollm2-135m", "gemma-3-270m", "qwen2.5-coder-0.5b"])
def test_real_models_pass_the_check(real_model: Callable[[str], Path], name: str) -> None:
    assert "token_embd.weight" in open_weights(real_model(name)).shapes


def test_raw_is_the_file_s_own_memory(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", type=GGMLQuantizationType.Q4_0)
    with GGUFFile(path) as file:
        weights = Weights(file, ModelConfig.from_gguf(file))
        data, kind, shape = weights.raw("blk.1.ffn_down.weight")
        assert (kind, shape) == (GGMLQuantizationType.Q4_0, (64, 128))
        assert data.shape == (64, 128 // 32 * 18)
        assert np.shares_memory(data, file.memory)
        del data


@pytest.mark.parametrize("kind", GGMLQuantizationType, ids=lambda kind: kind.name)
def test_rows_of_every_type(tmp_path: Path, kind: GGMLQuantizationType) -> None:
    """Random bytes as the embedding: some of its rows, as the package's dequantiser gives them."""
    block, block_bytes = GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(kind)
    blocks = rng.integers(0, 256, (50, 256 // block * block_bytes), np.uint8)
    path = write_model(
        tmp_path / "model.gguf",
        hidden=256,
        keys={"tokenizer.ggml.tokens": None, "{arch}.vocab_size": 50},
        tensors={"token_embd.weight": (blocks, kind)},
    )
    if not can_dequantize(kind):
        with pytest.raises(GGUFError, match=rf"is of type {kind.name}; supported are F32, F16,"):
            open_weights(path)
        return
    indices = np.array([3, 49, 3])
    with np.errstate(all="ignore"):  # among random scales are infinities and NaNs
        rows = dequantize(open_weights(path).raw("token_embd.weight").data[indices], kind)
        expected = gguf_dequantize(blocks, kind)[indices]
    assert (rows.dtype, rows.shape) == (np.float32, (3, 256))
    np.testing.assert_array_equal(rows, expected)


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("llama", "token_embd.weight"),
        ("llama", "output_norm.weight"),
        ("llama", "blk.1.attn_v.weight"),
        ("qwen2", "blk.1.attn_k.bias"),
        ("qwen3", "blk.0.attn_q_norm.weight"),
        ("gemma2", "blk.1.post_ffw_norm.weight"),
        ("lfm2", "blk.2.shortconv.conv.weight"),
        ("lfm2", "token_embd_norm.weight"),
    ],
)
def test_missing_and_misshapen_tensors_are_named(
    tmp_path: Path, architecture: str, name: str
) -> None:
    path = write_model(tmp_path / "model.gguf", architecture, tensors={name: None})
    with pytest.raises(GGUFError, match=f"tensor {name!r} of shape .* is missing"):
        open_weights(path)
    path = write_model(tmp_path / "model.gguf", architecture, tensors={name: np.ones((3, 5))})
    with pytest.raises(GGUFError, match=rf"tensor {name!r} must .*, found \(3, 5\)"):
        open_weights(path)


@pytest.mark.parametrize("name", ["blk.0.attn_output.bias", "rope_freqs.weight", "new.weight"])
def test_a_tensor_that_nothing_would_use_is_named(tmp_path: Path, name: str) -> None:
    path = write_model(tmp_path / "model.gguf", "qwen2", tensors={name: np.ones(8)})
    with pytest.raises(GGUFError, match=f"tensor {name!r} has no place in .* 'qwen2'"):
        open_weights(path)
