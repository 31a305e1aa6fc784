"""Tiny GGUF models with random weights, for tests: written by the `gguf` package, not by us.

    path = write_model(tmp_path / "tiny.gguf", "gemma3")
    path = write_model(tmp_path / "tiny.gguf", "llama", type=GGMLQuantizationType.Q4_K, hidden=256)

Each has a working tokenizer over all 256 bytes (byte-level BPE; SentencePiece for the gemmas), the
special tokens of ChatML and a chat template, so that every command runs on it in a second.
"""

import math
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "lfm2")
Tensor = tuple[np.ndarray, GGMLQuantizationType]  # blocks as uint8 [rows, row_bytes], or float32
NUM_LAYERS = {"gemma3": 6, "lfm2": 3}  # enough to see every kind of layer; 2 elsewhere
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Where a block keeps its half-precision scales, for the types that the package reads but cannot
# write (ggml-common.h).
_SCALES = {
    GGMLQuantizationType.Q2_K: (80, 82),
    GGMLQuantizationType.Q3_K: (108,),
    GGMLQuantizationType.Q4_K: (0, 2),
    GGMLQuantizationType.Q5_K: (0, 2),
    GGMLQuantizationType.Q6_K: (208,),
    GGMLQuantizationType.IQ1_S: (0,),
    GGMLQuantizationType.IQ2_XXS: (0,),
    GGMLQuantizationType.IQ2_XS: (0,),
    GGMLQuantizationType.IQ2_S: (0,),
    GGMLQuantizationType.IQ3_XXS: (0,),
    GGMLQuantizationType.IQ3_S: (0,),
    GGMLQuantizationType.IQ4_NL: (0,),
    GGMLQuantizationType.IQ4_XS: (0,),
}


def write_model(
    path: Path,
    architecture: str = "llama",
    *,
    type: GGMLQuantizationType = GGMLQuantizationType.F32,
    hidden: int = 64,
    ff: int = 128,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int | None = None,  # None: hidden / num_heads
    num_layers: int | None = None,
    tied: bool = True,
    seed: int = 0,
    keys: dict[str, object] | None = None,
    tensors: dict[str, np.ndarray | Tensor | None] | None = None,
) -> Path:
    """Write a model and return its path.

    Matrices have `type` where their rows are whole blocks of it, else F32; norms and biases are
    F32. `keys` and `tensors` (arrays that become float32, or blocks with their type) replace or
    add; None takes out. A key may start with "{arch}.".
    """
    num_layers = num_layers or NUM_LAYERS.get(architecture, 2)
    head_dim = head_dim or hidden // num_heads
    is_conv = [architecture == "lfm2" and layer % 2 == 0 for layer in range(num_layers)]
    vocabulary = sentencepiece() if architecture.startswith("gemma") else byte_level_bpe()
    metadata: dict[str, object] = {
        "general.name": f"tiny {architecture}",
        "{arch}.block_count": num_layers,
        "{arch}.context_length": 512,
        "{arch}.embedding_length": hidden,
        "{arch}.feed_forward_length": ff,
        "{arch}.attention.head_count": num_heads,
        "{arch}.attention.head_count_kv": (
            [0 if conv else num_kv_heads for conv in is_conv] if any(is_conv) else num_kv_heads
        ),
        "{arch}.attention.key_length": head_dim,
        "{arch}.attention.value_length": head_dim,
        "{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        "{arch}.rope.freq_base": 10000.0,
        **_ARCHITECTURE_KEYS.get(architecture, {}),
        **vocabulary,
        "tokenizer.chat_template": CHAT_TEMPLATE,
        **(keys or {}),
    }
    shapes = _shapes(
        architecture, hidden, ff, num_heads * head_dim, num_kv_heads * head_dim, head_dim, is_conv
    )
    shapes["token_embd.weight"] = (len(vocabulary["tokenizer.ggml.tokens"]), hidden)
    if not tied:
        shapes["output.weight"] = shapes["token_embd.weight"]
    rng = np.random.default_rng(seed)
    blocks = {name: _random_tensor(rng, shape, type) for name, shape in shapes.items()}
    for name, tensor in (tensors or {}).items():
        if tensor is None:
            del blocks[name]
        elif isinstance(tensor, tuple):
            blocks[name] = tensor
        else:
            blocks[name] = (tensor.astype(np.float32), GGMLQuantizationType.F32)
    write_gguf(path, architecture, metadata, blocks)
    return path


def write_gguf(
    path: Path, architecture: str, metadata: dict[str, object], tensors: dict[str, Tensor]
) -> None:
    """Write any keys (None: left out) and tensors (blocks as uint8, or float32) to a file."""
    writer = GGUFWriter(path, architecture)
    for key, value in metadata.items():
        key = key.replace("{arch}", architecture)
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif value is not None:
            raise TypeError(f"{key}: a {type(value).__name__} cannot be written")
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


_ARCHITECTURE_KEYS: dict[str, dict[str, object]] = {
    "gemma2": {"{arch}.attention.sliding_window": 8},
    "gemma3": {"{arch}.attention.sliding_window": 8, "{arch}.rope.freq_base": 1e6},
    "lfm2": {
        "{arch}.shortconv.l_cache": 3,
        "{arch}.attention.key_length": None,
        "{arch}.attention.value_length": None,
    },
}


def _shapes(
    architecture: str,
    hidden: int,
    ff: int,
    q_size: int,
    kv_size: int,
    head_dim: int,
    is_conv: list[bool],
) -> dict[str, tuple[int, ...]]:
    output_norm = "token_embd_norm.weight" if architecture == "lfm2" else "output_norm.weight"
    shapes: dict[str, tuple[int, ...]] = {output_norm: (hidden,)}
    for layer, conv in enumerate(is_conv):
        block = {
            "attn_norm.weight": (hidden,),
            "ffn_norm.weight": (hidden,),
            "ffn_gate.weight": (ff, hidden),
            "ffn_up.weight": (ff, hidden),
            "ffn_down.weight": (hidden, ff),
        }
        if conv:
            block["shortconv.conv.weight"] = (hidden, 3)
            block["shortconv.in_proj.weight"] = (3 * hidden, hidden)
            block["shortconv.out_proj.weight"] = (hidden, hidden)
        else:
            for name, size in {"q": q_size, "k": kv_size, "v": kv_size}.items():
                block[f"attn_{name}.weight"] = (size, hidden)
                if architecture == "qwen2":
                    block[f"attn_{name}.bias"] = (size,)
                if architecture in ("qwen3", "gemma3", "lfm2") and name != "v":
                    block[f"attn_{name}_norm.weight"] = (head_dim,)
            block["attn_output.weight"] = (hidden, q_size)
        if architecture in ("gemma2", "gemma3"):
            block["post_attention_norm.weight"] = (hidden,)
            block["post_ffw_norm.weight"] = (hidden,)
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    return shapes


def _random_tensor(
    rng: np.random.Generator, shape: tuple[int, ...], kind: GGMLQuantizationType
) -> Tensor:
    """Norms near 1 but not constant, so that a forgotten one shows; matrices that keep the scale."""
    if len(shape) == 1:
        return rng.uniform(0.5, 1.5, shape).astype(np.float32), GGMLQuantizationType.F32
    scale = 1 / math.sqrt(shape[-1])
    if shape[-1] % GGML_QUANT_SIZES[kind][0]:
        kind = GGMLQuantizationType.F32
    if kind in _SCALES:
        return random_blocks(rng, shape, kind, scale), kind
    return quantize(rng.normal(0, scale, shape).astype(np.float32), kind), kind


def random_blocks(
    rng: np.random.Generator, shape: tuple[int, ...], kind: GGMLQuantizationType, scale: float
) -> np.ndarray:
    """uint8 [rows, row_bytes] of random quants whose values have the standard deviation `scale`."""
    block, block_bytes = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (math.prod(shape) // block, block_bytes), np.uint8)
    values_scale = np.float16(1)
    for _ in range(2):  # first with the scale 1, to see what the quants make of it
        for offset in _SCALES[kind]:
            blocks[:, offset : offset + 2] = np.frombuffer(values_scale.tobytes(), np.uint8)
        values_scale = np.float16(scale / dequantize(blocks, kind).std())
    return blocks.reshape(*shape[:-1], -1)


def byte_level_bpe() -> dict[str, object]:
    """Metadata of a GPT-2 style tokenizer: the 256 bytes, a few merges, the ChatML tokens."""
    merges = ["Ġ t", "h e", "Ġt he", "i n", "Ġ a", "e r", "o n", "l l"]
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = specials + list(_bytes_to_unicode().values())
    tokens += [merge.replace(" ", "") for merge in merges]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(specials) + [1] * (len(tokens) - len(specials)),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }


def sentencepiece() -> dict[str, object]:
    """Metadata of a SentencePiece style tokenizer like Gemma's, with byte fallback."""
    controls = ["<pad>", "<eos>", "<bos>"]
    marks = ["<|im_start|>", "<|im_end|>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = ["▁t", "he", "▁the", "in", "▁a", "er", "on", "ll", "▁", *map(chr, range(33, 127))]
    tokens = [*controls, "<unk>", *marks, *byte_tokens, *pieces]
    types = [3, 3, 3, 2, 3, 3, *[6] * 256, *[1] * len(pieces)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": [0.0] * 262 + [-float(rank) for rank in range(len(pieces))],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
    }


def _bytes_to_unicode() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_ins = [*map(chr, printable), *(chr(256 + rank) for rank in range(len(others)))]
    return dict(zip(printable + others, stand_ins, strict=True))
