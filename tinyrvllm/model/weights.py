"""A model's tensors, by the names the file has for them, checked against its configuration."""

from functools import cache
from typing import NamedTuple

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from tinyrvllm.model.config import ModelConfig
from tinyrvllm.model.gguf_file import GGUFFile


class RawTensor(NamedTuple):
    """A tensor as the file has it. `shape` is (rows, columns), or (columns,)."""

    data: np.ndarray  # uint8 [rows, row_bytes], a view on the memory map
    type: GGMLQuantizationType
    shape: tuple[int, ...]


class Weights:
    """The tensors of a model. Nothing is read before it is asked for.

    `shapes` maps the name of each tensor to its shape. Raises GGUFError at once if a tensor is
    missing, misshapen, unexpected or of a type that cannot be dequantised.
    """

    def __init__(self, file: GGUFFile, config: ModelConfig) -> None:
        self.shapes = tensor_shapes(config)
        self._file = file
        _check(file, config, self.shapes)

    def raw(self, name: str) -> RawTensor:
        """The tensor as the file has it, without a copy."""
        tensor = self._file.tensors[name]
        return RawTensor(self._file.data(name), tensor.type, tensor.shape)


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The name and shape of every tensor that a model of this configuration has."""
    hidden, ff = config.hidden_size, config.intermediate_size
    q_size = config.num_heads * config.head_dim
    kv_size = config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (config.vocab_size, hidden),
        config.output_norm: (hidden,),
    }
    if not config.tied_output:
        shapes["output.weight"] = (config.vocab_size, hidden)
    for layer, kind in enumerate(config.layer_kinds):
        tensors: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (hidden,),
            "ffn_norm.weight": (hidden,),
            "ffn_gate.weight": (ff, hidden),
            "ffn_up.weight": (ff, hidden),
            "ffn_down.weight": (hidden, ff),
        }
        if kind == "conv":
            tensors |= {
                "shortconv.conv.weight": (hidden, config.conv_kernel),
                "shortconv.in_proj.weight": (3 * hidden, hidden),
                "shortconv.out_proj.weight": (hidden, hidden),
            }
        else:
            tensors |= {
                "attn_q.weight": (q_size, hidden),
                "attn_k.weight": (kv_size, hidden),
                "attn_v.weight": (kv_size, hidden),
                "attn_output.weight": (hidden, q_size),
            }
            if config.qkv_bias:
                tensors |= {
                    "attn_q.bias": (q_size,),
                    "attn_k.bias": (kv_size,),
                    "attn_v.bias": (kv_size,),
                }
            if config.qk_norm:
                tensors |= {
                    "attn_q_norm.weight": (config.head_dim,),
                    "attn_k_norm.weight": (config.head_dim,),
                }
        if config.post_norms:
            tensors |= {
                "post_attention_norm.weight": (hidden,),
                "post_ffw_norm.weight": (hidden,),
            }
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in tensors.items()}
    return shapes


def _check(file: GGUFFile, config: ModelConfig, shapes: dict[str, tuple[int, ...]]) -> None:
    for name, shape in shapes.items():
        if name not in file.tensors:
            raise file.error(f"tensor {name!r} of shape {shape} is missing")
        tensor = file.tensors[name]
        if tensor.shape != shape:
            raise file.error(
                f"tensor {name!r} must have the shape {shape} by the metadata, found {tensor.shape}"
            )
        if not can_dequantize(tensor.type):
            supported = ", ".join(kind.name for kind in GGML_QUANT_SIZES if can_dequantize(kind))
            raise file.error(
                f"tensor {name!r} is of type {tensor.type.name}; supported are {supported}"
            )
    # A bias or a scale that we did not apply would give wrong text without a word.
    used_by_config = {"rope_freqs.weight"} if config.rope_freq_factors is not None else set()
    if unexpected := sorted(file.tensors.keys() - shapes.keys() - used_by_config):
        raise file.error(
            f"tensor {unexpected[0]!r} has no place in a model of the architecture "
            f"{config.architecture!r} as this engine knows it"
        )


@cache
def can_dequantize(kind: GGMLQuantizationType) -> bool:
    """Whether the `gguf` package can turn blocks of this type into float32."""
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True
