"""A model's tensors, by the names the file has for them, checked against its configuration."""

import threading
from typing import Final, NamedTuple

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from tinyrvllm.model.config import ModelConfig
from tinyrvllm.model.gguf_file import GGUFFile

# Elements dequantised at a time: their temporaries should stay in the processor's cache.
CHUNK_ELEMENTS: Final = 1 << 17


class RawTensor(NamedTuple):
    """A tensor as the file has it. `shape` is (rows, columns), or (columns,)."""

    data: np.ndarray  # uint8 [rows, row_bytes], a view on the memory map
    type: GGMLQuantizationType
    shape: tuple[int, ...]


class Weights:
    """The tensors of a model. Nothing is read before it is asked for.

    Raises GGUFError at once if a tensor is missing, misshapen, unexpected or of a type that cannot
    be dequantised.
    """

    def __init__(self, file: GGUFFile, config: ModelConfig) -> None:
        self.file = file
        self.shapes = tensor_shapes(config)
        self._float32: dict[str, np.ndarray] = {}
        self._lock = threading.Lock()
        _check(file, self.shapes)

    def raw(self, name: str) -> RawTensor:
        """The tensor as the file has it, without a copy."""
        tensor = self.file.tensors[name]
        return RawTensor(self.file.data(name), tensor.type, tensor.shape)

    def f32(self, name: str) -> np.ndarray:
        """float32 of the tensor's shape; dequantised the first time, kept after that."""
        with self._lock:
            if name not in self._float32:
                data, kind, shape = self.raw(name)
                self._float32[name] = _dequantize(data, kind).reshape(shape)
            return self._float32[name]

    def rows(self, name: str, indices: np.ndarray) -> np.ndarray:
        """float32 [len(indices), columns]: some rows of a matrix, dequantised and not kept."""
        data, kind, _ = self.raw(name)
        return _dequantize(data[indices], kind).reshape(len(indices), -1)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors in the file."""
        return sum(self.file.tensors[name].nbytes for name in self.shapes)

    @property
    def float32_nbytes(self) -> int:
        """Bytes of memory that `f32` has taken so far."""
        return sum(array.nbytes for array in self._float32.values())


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


def _check(file: GGUFFile, shapes: dict[str, tuple[int, ...]]) -> None:
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
    if unexpected := sorted(file.tensors.keys() - shapes.keys() - {"rope_freqs.weight"}):
        raise file.error(
            f"tensor {unexpected[0]!r} has no place in the architecture "
            f"{file.get('general.architecture', str)!r} as this engine knows it"
        )


def can_dequantize(kind: GGMLQuantizationType) -> bool:
    """Whether the `gguf` package can turn blocks of this type into float32."""
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _dequantize(data: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """float32 [elements] from uint8 blocks of any shape."""
    if kind is GGMLQuantizationType.F32:
        return data.reshape(-1).view("<f4")
    block, block_bytes = GGML_QUANT_SIZES[kind]
    chunk = CHUNK_ELEMENTS // block
    blocks = data.reshape(-1, block_bytes)
    out = np.empty(len(blocks) * block, np.float32)
    for start in range(0, len(blocks), chunk):
        # One long row: the package would walk a matrix 16 rows at a time, which is far slower.
        row = blocks[start : start + chunk].reshape(1, -1)
        out[start * block : (start + chunk) * block] = dequantize(row, kind).reshape(-1)
    return out
