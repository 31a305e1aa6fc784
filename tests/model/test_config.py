"""Metadata to hyper-parameters: defaults, special cases and refusals, as llama.cpp has them."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.tiny_models import ARCHITECTURES, write_gguf, write_model
from tinyrvllm.model.config import ModelConfig
from tinyrvllm.model.gguf_file import GGUFError, GGUFFile


@pytest.fixture
def config_of(tmp_path: Path) -> Callable[..., ModelConfig]:
    """Write a tiny model with these keys and tensors, and read its configuration."""

    def read(architecture: str, keys: dict[str, object] | None = None, **options) -> ModelConfig:
        path = write_model(tmp_path / "model.gguf", architecture, keys=keys, **options)
        with GGUFFile(path) as file:
            return ModelConfig.from_gguf(file)

    return read


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_sets_the_architectures_apart(config_of, architecture: str) -> None:
    config = config_of(architecture)
    gemma = architecture.startswith("gemma")
    assert config.rope_interleaved == (architecture == "llama")
    assert config.activation == ("gelu_tanh" if gemma else "silu")
    assert config.embedding_scale == (8.0 if gemma else 1.0)
    assert config.qk_norm == (architecture in ("qwen3", "gemma3", "lfm2"))
    assert config.qkv_bias == (architecture == "qwen2")
    assert config.post_norms == (architecture in ("gemma2", "gemma3"))
    assert (config.attn_softcap, config.final_softcap) == (
        (50.0, 30.0) if architecture == "gemma2" else (None, None)
    )
    assert config.attn_scale == 0.25
    assert config.tied_output


@pytest.mark.real_model
def test_smollm2(real_model: Callable[[str], Path]) -> None:
    with GGUFFile(real_model("smollm2-135m")) as file:
        config = ModelConfig.from_gguf(file)
    assert (config.architecture, config.num_layers, config.hidden_size) == ("llama", 30, 576)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
    assert (config.intermediate_size, config.vocab_size) == (1536, 49152)
    assert config.context_length == 8192
    assert config.norm_eps == pytest.approx(1e-5)
    assert set(config.rope_bases) == {1e5}
    assert set(config.sliding_window) == {None}
    assert config.tied_output


@pytest.mark.real_model
def test_gemma_3_gets_the_base_and_the_pattern_its_file_lacks(
    real_model: Callable[[str], Path],
) -> None:
    with GGUFFile(real_model("gemma-3-270m")) as file:
        config = ModelConfig.from_gguf(file)
        assert "gemma3.rope.freq_base_swa" not in file.metadata
        assert "gemma3.attention.sliding_window_pattern" not in file.metadata
    assert (config.num_layers, config.hidden_size, config.vocab_size) == (18, 640, 262144)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 1, 256)
    assert config.rope_bases == ((1e4,) * 5 + (1e6,)) * 3
    assert config.sliding_window == ((512,) * 5 + (None,)) * 3
    assert config.attn_scale == 1 / 16
    assert config.embedding_scale == math.sqrt(640)


@pytest.mark.real_model
def test_qwen2_5_coder(real_model: Callable[[str], Path]) -> None:
    with GGUFFile(real_model("qwen2.5-coder-0.5b")) as file:
        config = ModelConfig.from_gguf(file)
    assert (config.architecture, config.num_layers, config.hidden_size) == ("qwen2", 24, 896)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (14, 2, 64)
    assert (config.intermediate_size, config.vocab_size) == (4864, 151936)
    assert config.qkv_bias
    assert not config.tied_output


def test_defaults_of_missing_keys(config_of) -> None:
    keys = ("attention.head_count_kv", "attention.key_length", "attention.value_length")
    missing = {f"{{arch}}.{name}": None for name in (*keys, "rope.freq_base")}
    config = config_of("llama", missing, num_kv_heads=4)
    assert (config.num_kv_heads, config.head_dim) == (4, 16)
    assert set(config.rope_bases) == {10000.0}


def test_gemma2_alternates_local_and_global_layers(config_of) -> None:
    assert config_of("gemma2", num_layers=4).sliding_window == (8, None, 8, None)
    default = config_of("gemma2", {"{arch}.attention.sliding_window": None})
    assert default.sliding_window == (4096, None)
    caps = {"{arch}.attn_logit_softcapping": 20.0, "{arch}.final_logit_softcapping": 0.0}
    config = config_of("gemma2", caps)
    assert (config.attn_softcap, config.final_softcap) == (20.0, None)


def test_gemma3_windows_and_bases(config_of) -> None:
    key = "{arch}.attention.sliding_window"
    assert config_of("gemma3", num_layers=7).sliding_window == (8,) * 5 + (None, 8)
    assert config_of("gemma3", {key + "_pattern": 2}).sliding_window == (8, None) * 3
    booleans = [True, False, False, True, True, False]
    config = config_of("gemma3", {key + "_pattern": booleans})
    assert config.sliding_window == (8, None, None, 8, 8, None)
    assert config.rope_bases == (1e4, 1e6, 1e6, 1e4, 1e4, 1e6)
    for no_window in (None, 0):
        config = config_of("gemma3", {key: no_window})
        assert (set(config.sliding_window), set(config.rope_bases)) == ({None}, {1e6})
    config = config_of("gemma3", {"{arch}.rope.freq_base_swa": 2e4, "{arch}.rope.scaling.factor": 8.0})
    assert config.rope_bases == (2e4,) * 5 + (1e6,)
    assert config.rope_linear_factors == (1.0,) * 5 + (8.0,)  # only the global layers


@pytest.mark.parametrize(("architecture", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_27b_models_scale_queries_by_hidden_over_heads(
    config_of, architecture: str, layers: int
) -> None:
    shape = {"head_dim": 32, "num_heads": 4, "hidden": 64, "ff": 32}
    assert config_of(architecture, num_layers=layers, **shape).attn_scale == 1 / math.sqrt(16)
    assert config_of(architecture, num_layers=4, **shape).attn_scale == 1 / math.sqrt(32)


def test_lfm2_layers_without_key_value_heads_are_convolutions(config_of) -> None:
    config = config_of("lfm2")
    assert config.layer_kinds == ("conv", "attention", "conv")
    assert (config.num_kv_heads, config.conv_kernel) == (2, 3)
    assert config.output_norm == "token_embd_norm.weight"
    config = config_of("lfm2", {"{arch}.attention.sliding_window": 16})
    assert config.sliding_window == (None, 16, None)


def test_rope_frequencies(config_of) -> None:
    plain = config_of("llama").rope_inv_freq(0)
    assert plain.dtype == np.float64
    np.testing.assert_allclose(plain, [10000 ** (-2 * i / 16) for i in range(8)], rtol=1e-15)
    linear = config_of("llama", {"{arch}.rope.scaling.factor": 4.0})
    np.testing.assert_allclose(linear.rope_inv_freq(1), plain / 4, rtol=1e-15)
    old_name = config_of("llama", {"{arch}.rope.scale_linear": 2.0})
    np.testing.assert_allclose(old_name.rope_inv_freq(1), plain / 2, rtol=1e-15)
    none = {"{arch}.rope.scaling.factor": 4.0, "{arch}.rope.scaling.type": "none"}
    np.testing.assert_allclose(config_of("llama", none).rope_inv_freq(1), plain, rtol=1e-15)


def test_llama_3_rope_scaling_from_metadata_equals_that_from_the_tensor(config_of) -> None:
    """The tensor as llama.cpp's converter makes it (conversion/llama.py, one pair at a time)."""
    factor, low, high, context, base, head_dim = 8.0, 1.0, 4.0, 8192, 500000.0, 64
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * base ** (i / head_dim)
        if wavelength < context / high:
            factors.append(1.0)
        elif wavelength > context / low:
            factors.append(factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    assert len(set(factors)) > 2, "the blend between is in the test"
    keys = {"{arch}.rope.freq_base": base}
    from_tensor = config_of(
        "llama", keys, head_dim=head_dim, tensors={"rope_freqs.weight": np.array(factors)}
    )
    keys |= {
        "{arch}.rope.scaling.type": "llama3",
        "{arch}.rope.scaling.factor": factor,
        "{arch}.rope.scaling.low_freq_factor": low,
        "{arch}.rope.scaling.high_freq_factor": high,
        "{arch}.rope.scaling.original_context_length": context,
    }
    from_metadata = config_of("llama", keys, head_dim=head_dim)
    expected = base ** -(np.arange(0, head_dim, 2) / head_dim) / factors
    for config in (from_tensor, from_metadata):
        np.testing.assert_allclose(config.rope_inv_freq(0), expected, rtol=1e-6)


WRONG_KEYS = {
    "general.architecture": [("mamba", "'mamba' is not supported; supported are llama, qwen2")],
    "general.type": [("adapter", "'adapter'; a 'model' is expected")],
    "split.count": [(3, "one of 3 parts")],
    "{arch}.block_count": [(0, "1 to 512"), (513, "1 to 512"), (None, "missing"), ("2", "int")],
    "{arch}.embedding_length": [(0, "from 1"), (None, "missing"), (66, "multiple of the 4")],
    "{arch}.feed_forward_length": [(0, "from 1"), ([128, 64], "one integer for all layers")],
    "{arch}.attention.head_count": [(0, "from 1"), (1 << 31, "from 1"), (3, "multiple of the 3")],
    "{arch}.attention.head_count_kv": [
        (0, "from 1"),
        (3, "does not divide"),
        ([2, 0], "attention layers"),
        ([2, 1], "attention layers"),
        ([2], "2 integers"),
        ([2.0, 2.0], "2 integers"),
    ],
    "{arch}.attention.key_length": [(15, "is odd"), (2048, "1 to 1024"), (16.0, "type int")],
    "{arch}.attention.value_length": [(32, "only the head dimension 16")],
    "{arch}.rope.dimension_count": [(8, "only the head dimension 16")],
    "{arch}.context_length": [(0, "from 1"), (None, "missing")],
    "{arch}.attention.layer_norm_rms_epsilon": [
        (0.0, "above 0"),
        (-1e-5, "above 0"),
        (math.nan, "found nan"),
        (math.inf, "found inf"),
        (1, "type float"),
        (None, "missing"),
    ],
    "{arch}.rope.freq_base": [(0.0, "above 0"), (math.nan, "found nan"), (10000, "type float")],
    "{arch}.rope.scaling.type": [("yarn", "'yarn'; supported are none, linear, llama3")],
    "{arch}.rope.scaling.factor": [(0.0, "above 0"), (-2.0, "above 0")],
    "{arch}.rope.scaling.attn_factor": [(1.5, "only 1.0 is supported")],
    "{arch}.expert_count": [(8, "only 0 is supported")],
    "{arch}.attention.causal": [(False, "only True is supported")],
}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [(key, value, message) for key, cases in WRONG_KEYS.items() for value, message in cases],
)
def test_wrong_values_are_named(
    tmp_path: Path, key: str, value: object, message: str
) -> None:
    keys = {key: value}
    if "multiple" in message:  # which matters only where the head dimension comes from it
        keys["{arch}.attention.key_length"] = None
    path = write_model(tmp_path / "model.gguf", keys=keys)
    with GGUFFile(path) as file, pytest.raises(GGUFError) as caught:
        ModelConfig.from_gguf(file)
    assert message in str(caught.value)
    assert key.replace("{arch}", "llama").split(".")[-1].split("_")[0] in str(caught.value)


@pytest.mark.parametrize(
    ("architecture", "keys", "message"),
    [
        ("gemma3", {"{arch}.attention.sliding_window_pattern": [True]}, "must hold 6 values"),
        ("gemma3", {"{arch}.attention.sliding_window_pattern": 0}, "from 1"),
        ("gemma2", {"{arch}.attention.sliding_window": 0}, "from 1"),
        ("gemma2", {"{arch}.attn_logit_softcapping": math.nan}, "found nan"),
        ("gemma2", {"{arch}.final_logit_softcapping": -30.0}, "above 0"),
        ("lfm2", {"{arch}.shortconv.l_cache": None}, "missing"),
        ("lfm2", {"{arch}.attention.head_count_kv": [0, 0, 0]}, "attention layers"),
        ("llama", {"{arch}.rope.scaling.type": "llama3"}, "scaling.factor' is missing"),
        (
            "llama",
            {
                "{arch}.rope.scaling.type": "llama3",
                "{arch}.rope.scaling.factor": 8.0,
                "{arch}.rope.scaling.low_freq_factor": 4.0,
            },
            "must be below high_freq_factor",
        ),
    ],
)
def test_wrong_values_of_some_architectures(
    config_of, architecture: str, keys: dict[str, object], message: str
) -> None:
    with pytest.raises(GGUFError, match=message):
        config_of(architecture, keys)


@pytest.mark.parametrize("factors", [[1.0] * 7, [0.0] * 8, [math.nan] * 8])
def test_wrong_rope_factors_are_named(config_of, factors: list[float]) -> None:
    with pytest.raises(GGUFError, match=r"tensor 'rope_freqs\.weight'"):
        config_of("llama", tensors={"rope_freqs.weight": np.array(factors)})


def test_a_message_stays_short(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", keys={"general.architecture": "x" * 100_000})
    with GGUFFile(path) as file, pytest.raises(GGUFError, match="architecture 'xxx") as caught:
        ModelConfig.from_gguf(file)
    assert len(str(caught.value)) < 1000


def test_a_file_with_only_a_vocabulary(tmp_path: Path) -> None:
    write_gguf(tmp_path / "vocab.gguf", "llama", {"tokenizer.ggml.tokens": ["a"]}, {})
    with GGUFFile(tmp_path / "vocab.gguf") as file, pytest.raises(GGUFError, match="no tensors"):
        ModelConfig.from_gguf(file)


def test_without_a_tokenizer_the_vocabulary_size_is_a_key(config_of) -> None:
    assert config_of("llama", {"tokenizer.ggml.tokens": None, "{arch}.vocab_size": 9}).vocab_size == 9
    with pytest.raises(GGUFError, match=r"'llama\.vocab_size' is missing"):
        config_of("llama", {"tokenizer.ggml.tokens": None})
