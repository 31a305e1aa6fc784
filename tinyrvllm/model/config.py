"""What a model looks like: the hyper-parameters of seven architectures from their metadata keys.

Keys, defaults and special cases are those of llama.cpp (src/llama-model.cpp, src/models/*.cpp), so
that a file means here what it means there. Anything it would compute and we would not is an error.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np
from gguf.constants import GGMLQuantizationType

from tinyrvllm.model.config_keys import Keys
from tinyrvllm.model.gguf_file import GGUFFile

ARCHITECTURES: Final = ("llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "lfm2")
MAX_LAYERS: Final = 512  # llama.cpp's own limit
MAX_HEAD_DIM: Final = 1024  # the largest known is 512

# Features of llama.cpp that we do not have: the one value that leaves each of them out.
UNSUPPORTED: Final[dict[str, bool | int | float]] = {
    "attention.causal": True,
    "expert_count": 0,
    "nextn_predict_layers": 0,
    "rope.scaling.attn_factor": 1.0,
}

LayerKind = Literal["attention", "conv"]
Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, eq=False)
class ModelConfig:
    """The hyper-parameters of one model.

    Gemma's norms multiply by 1 + w in the paper; its GGUF files hold 1 + w already, so every norm
    here multiplies by the weight as it is.
    """

    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int  # of the attention layers; all of them have as many
    head_dim: int
    vocab_size: int
    context_length: int  # tokens the model was trained for
    norm_eps: float
    layer_kinds: tuple[LayerKind, ...]  # [num_layers]
    conv_kernel: int  # taps of a short convolution, the newest token included; 0: no conv layer
    rope_interleaved: bool  # pairs are (2i, 2i+1) if true, else (i, i + head_dim / 2)
    rope_bases: tuple[float, ...]  # [num_layers]
    rope_linear_factors: tuple[float, ...]  # [num_layers] positions are divided by it
    rope_freq_factors: np.ndarray | None  # float32 [head_dim / 2] angles are divided by it
    sliding_window: tuple[int | None, ...]  # [num_layers] tokens seen, itself included; None: all
    attn_scale: float  # of q . k
    attn_softcap: float | None  # scores become cap * tanh(scores / cap)
    final_softcap: float | None  # so do logits
    activation: Activation
    embedding_scale: float
    qk_norm: bool  # RMS norm of each head of q and k, before RoPE
    post_norms: bool  # also norm what attention and feed-forward give, before the residual add
    qkv_bias: bool
    tied_output: bool  # logits come from the embedding matrix
    output_norm: str  # the name of the last norm's tensor

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> "ModelConfig":
        """Read the configuration from a file's metadata.

        Raises GGUFError for an architecture or feature that is not supported, a missing key, and a
        value without a meaning.
        """
        return _read(file)

    def rope_inv_freq(self, layer: int) -> np.ndarray:
        """float64 [head_dim / 2]: the radians that pair i turns per position (RoFormer, eq. 15)."""
        return self._inv_freqs[self.rope_bases[layer], self.rope_linear_factors[layer]]

    @cached_property
    def _inv_freqs(self) -> dict[tuple[float, float], np.ndarray]:
        exponents = np.arange(0, self.head_dim, 2, dtype=np.float64) / self.head_dim
        freq_factors = 1.0 if self.rope_freq_factors is None else self.rope_freq_factors
        return {
            (base, linear_factor): base**-exponents / linear_factor / freq_factors
            for base, linear_factor in zip(self.rope_bases, self.rope_linear_factors, strict=True)
        }


def _read(file: GGUFFile) -> ModelConfig:
    arch = _architecture(file)
    keys = Keys(file, arch)
    is_gemma = arch.startswith("gemma")
    num_layers = keys.positive("block_count", most=MAX_LAYERS)
    hidden_size = keys.positive("embedding_length")
    num_heads = keys.positive("attention.head_count")
    kv_heads = keys.per_layer("attention.head_count_kv", num_layers, num_heads)
    layer_kinds, num_kv_heads = _layer_kinds(keys, arch, kv_heads)
    head_dim = _head_dim(keys, hidden_size, num_heads)
    if num_heads % num_kv_heads:
        raise file.error(
            f"{arch}.attention.head_count_kv is {num_kv_heads}, which does not divide "
            f"the {num_heads} of {arch}.attention.head_count"
        )
    window = _sliding_window(keys, arch, layer_kinds)
    bases, linear_factors = _rope(keys, arch, window)
    # 27B models scale by the width that each head would have if they shared hidden_size.
    is_27b = (arch, num_layers) in (("gemma2", 46), ("gemma3", 62))
    query_width = hidden_size // num_heads if is_27b else head_dim
    tensors = file.tensors
    return ModelConfig(
        architecture=arch,
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=keys.positive("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=_vocab_size(keys),
        context_length=keys.positive("context_length"),
        norm_eps=keys.real("attention.layer_norm_rms_epsilon"),
        layer_kinds=layer_kinds,
        conv_kernel=keys.positive("shortconv.l_cache") if arch == "lfm2" else 0,
        rope_interleaved=arch == "llama",
        rope_bases=bases,
        rope_linear_factors=linear_factors,
        rope_freq_factors=_rope_freq_factors(keys, bases[0], head_dim),
        sliding_window=window,
        attn_scale=1 / math.sqrt(query_width),
        attn_softcap=keys.softcap("attn_logit_softcapping", 50.0) if arch == "gemma2" else None,
        final_softcap=(
            keys.softcap("final_logit_softcapping", 30.0 if arch == "gemma2" else 0.0)
            if arch in ("gemma2", "gemma3")
            else None
        ),
        activation="gelu_tanh" if is_gemma else "silu",
        embedding_scale=math.sqrt(hidden_size) if is_gemma else 1.0,
        qk_norm=arch in ("qwen3", "gemma3", "lfm2"),
        post_norms=arch in ("gemma2", "gemma3"),
        qkv_bias=f"blk.{layer_kinds.index('attention')}.attn_q.bias" in tensors,
        tied_output="output.weight" not in tensors,
        # The name that lfm2 files have for it, though it is the norm after the last layer.
        output_norm="token_embd_norm.weight" if arch == "lfm2" else "output_norm.weight",
    )


def _architecture(file: GGUFFile) -> str:
    """The architecture, after checking that the file holds a whole model."""
    arch = file.get("general.architecture", str)
    kind = file.get("general.type", str, "model")
    parts = file.get("split.count", int, 1)
    if arch not in ARCHITECTURES:
        raise file.error(
            f"the architecture {arch!r} is not supported; supported are {', '.join(ARCHITECTURES)}"
        )
    if kind != "model":
        raise file.error(f"the file's general.type is {kind!r}; a 'model' is expected")
    if parts > 1:
        raise file.error(
            f"the file is one of {parts} parts of a model (split.count); join them first with "
            "llama.cpp's `llama-gguf-split --merge`"
        )
    if not file.tensors:
        raise file.error("the file holds a vocabulary but no tensors; take the model's own file")
    for name, neutral in UNSUPPORTED.items():
        found = file.get(f"{arch}.{name}", type(neutral), neutral)
        if found != neutral:
            raise file.error(f"the key '{arch}.{name}' is {found}; only {neutral} is supported")
    return arch


def _vocab_size(keys: Keys) -> int:
    """As many as the tokenizer has tokens; the key counts only where there is no tokenizer."""
    tokens = keys.file.metadata.get("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, Sequence) else keys.positive("vocab_size")


def _head_dim(keys: Keys, hidden_size: int, num_heads: int) -> int:
    if hidden_size % num_heads and f"{keys.arch}.attention.key_length" not in keys.file.metadata:
        raise keys.file.error(
            f"{keys.arch}.embedding_length {hidden_size} is not a multiple of the {num_heads} of "
            f"{keys.arch}.attention.head_count, and {keys.arch}.attention.key_length is missing"
        )
    head_dim = keys.positive("attention.key_length", hidden_size // num_heads, MAX_HEAD_DIM)
    if head_dim % 2:
        raise keys.file.error(
            f"the key '{keys.arch}.attention.key_length' is odd ({head_dim}), and RoPE turns pairs"
        )
    for name in ("attention.value_length", "rope.dimension_count"):
        for suffix in ("", "_swa"):
            if (found := keys.positive(name + suffix, head_dim)) != head_dim:
                raise keys.file.error(
                    f"the key '{keys.arch}.{name}{suffix}' is {found}; only the head dimension "
                    f"{head_dim} is supported"
                )
    return head_dim


def _layer_kinds(
    keys: Keys, arch: str, kv_heads: list[int]
) -> tuple[tuple[LayerKind, ...], int]:
    """(the kind of each layer, key-value heads of an attention layer). lfm2's 0 heads say conv."""
    different = set(kv_heads) - ({0} if arch == "lfm2" else set())
    if len(different) != 1 or 0 in different:
        raise keys.file.error(
            f"the key '{arch}.attention.head_count_kv' must be the same positive number in all "
            f"attention layers, found {sorted(different)}"
        )
    kinds: tuple[LayerKind, ...] = tuple("attention" if heads else "conv" for heads in kv_heads)
    return kinds, different.pop()


def _sliding_window(
    keys: Keys, arch: str, kinds: tuple[LayerKind, ...]
) -> tuple[int | None, ...]:
    """Each layer's window. gemma2 alternates local and global; gemma3 has 5 local to 1 global."""
    key = "attention.sliding_window"
    if arch not in ("gemma2", "gemma3", "lfm2"):
        return (None,) * len(kinds)
    if arch != "gemma2" and keys.file.get(f"{arch}.{key}", int, 0) == 0:
        return (None,) * len(kinds)
    window = keys.positive(key, 4096)
    pattern = keys.file.metadata.get(f"{arch}.{key}_pattern")
    if arch == "lfm2":
        is_local = [kind == "attention" for kind in kinds]
    elif isinstance(pattern, np.ndarray):
        if len(pattern) != len(kinds):
            raise keys.file.error(
                f"the key '{arch}.{key}_pattern' must hold {len(kinds)} values, one for each "
                f"layer; found {len(pattern)}"
            )
        is_local = (pattern != 0).tolist()
    else:
        period = keys.positive(f"{key}_pattern", 2 if arch == "gemma2" else 6)
        is_local = [layer % period < period - 1 for layer in range(len(kinds))]
    return tuple(window if local else None for local in is_local)


def _rope(
    keys: Keys, arch: str, window: tuple[int | None, ...]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(RoPE's base, what positions are divided by) of each layer."""
    scaling = keys.file.get(f"{arch}.rope.scaling.type", str, "linear")
    if scaling not in ("none", "linear", "llama3"):
        raise keys.file.error(
            f"the key '{arch}.rope.scaling.type' is {scaling!r}; supported are none, linear, llama3"
        )
    base = keys.real("rope.freq_base", 10000.0)
    factor = 1.0
    if scaling == "linear":
        factor = keys.real("rope.scaling.factor", keys.real("rope.scale_linear", 1.0))
    local_base, local_factor = base, factor
    if arch == "gemma3":  # local layers are never stretched, and converters leave their base out
        local_base, local_factor = 10000.0, 1.0
    if arch in ("gemma2", "gemma3"):
        local_base = keys.real("rope.freq_base_swa", local_base)
    return (
        tuple(base if size is None else local_base for size in window),
        tuple(factor if size is None else local_factor for size in window),
    )


def _rope_freq_factors(keys: Keys, base: float, head_dim: int) -> np.ndarray | None:
    """What Llama 3 divides its angles by: from a tensor, or from the metadata it is made of."""
    file = keys.file
    tensor = file.tensors.get("rope_freqs.weight")
    if tensor and keys.arch == "llama":
        if tensor.type is not GGMLQuantizationType.F32 or tensor.shape != (head_dim // 2,):
            raise file.error(
                f"tensor 'rope_freqs.weight' must be F32 of shape ({head_dim // 2},), found "
                f"{tensor.type.name} of shape {tensor.shape}"
            )
        factors = file.data(tensor.name).view("<f4").reshape(-1).copy()
        if not (np.isfinite(factors) & (factors > 0)).all():
            raise file.error("tensor 'rope_freqs.weight' must be finite and above 0 everywhere")
        return factors
    if file.get(f"{keys.arch}.rope.scaling.type", str, "linear") != "llama3":
        return None
    factor = keys.real("rope.scaling.factor")
    low = keys.real("rope.scaling.low_freq_factor", 1.0)
    high = keys.real("rope.scaling.high_freq_factor", 4.0)
    original_context = keys.positive("rope.scaling.original_context_length", 8192)
    if low >= high:
        raise file.error(
            f"'{keys.arch}.rope.scaling.low_freq_factor' {low} must be below high_freq_factor {high}"
        )
    # 1 for pairs that turn fast, `factor` for slow ones, a blend between: `apply_scaling` of
    # Llama 3.1's reference code.
    wavelengths = 2 * math.pi * base ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    turns = original_context / wavelengths  # in the context the model was first trained on
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
