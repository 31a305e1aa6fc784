"""Random weights in a real model's shape, for measuring where its file is not to be had.

Speed does not depend on what the weights are: `smollm2-360m:q8_0` runs as fast as the real one.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from tqdm import tqdm

from tinyrvllm import hub
from tinyrvllm.errors import TinyrvllmError

CONTEXT = 8192  # tokens; the real models' own would only make the default pool larger
ALIGNMENT = 32  # bytes, of each tensor in the file: GGUF's default
CHUNK = 1 << 22  # values at a time

# Where a block keeps its half-precision scales, and how many times the first one each must be for
# values around 0 when the quants are uniformly random (layouts: ggml-common.h).
SCALES: dict[GGMLQuantizationType, dict[int, float]] = {
    GGMLQuantizationType.Q8_0: {0: 1},
    GGMLQuantizationType.Q4_0: {0: 1},
    GGMLQuantizationType.Q4_1: {0: 1, 2: -7.5},  # value = d * (0..15) + m
    GGMLQuantizationType.Q4_K: {0: 1, 2: 7.5},  # value = d * s * (0..15) - dmin * m
    GGMLQuantizationType.Q6_K: {208: 1},
}
PLAIN = {GGMLQuantizationType.F16: np.float16, GGMLQuantizationType.F32: np.float32}
KINDS = {kind.name.lower(): kind for kind in (*PLAIN, *SCALES)}


@dataclass(frozen=True)
class Shape:
    """The sizes of a model; head_dim is hidden / heads."""

    architecture: str
    layers: int
    hidden: int
    ff: int
    heads: int
    kv_heads: int
    vocab: int
    rope_base: float
    tied: bool = True

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """(name, (rows, columns) or (columns,)) of each tensor."""
        hidden, kv_size = self.hidden, self.hidden // self.heads * self.kv_heads
        yield "token_embd.weight", (self.vocab, hidden)
        for layer in range(self.layers):
            name = f"blk.{layer}."
            yield name + "attn_norm.weight", (hidden,)
            for part, size in (("q", hidden), ("k", kv_size), ("v", kv_size)):
                yield f"{name}attn_{part}.weight", (size, hidden)
                if self.architecture == "qwen2":
                    yield f"{name}attn_{part}.bias", (size,)
            yield name + "attn_output.weight", (hidden, hidden)
            yield name + "ffn_norm.weight", (hidden,)
            yield name + "ffn_gate.weight", (self.ff, hidden)
            yield name + "ffn_up.weight", (self.ff, hidden)
            yield name + "ffn_down.weight", (hidden, self.ff)
        yield "output_norm.weight", (hidden,)
        if not self.tied:
            yield "output.weight", (self.vocab, hidden)


SHAPES = {
    "smollm2-135m": Shape("llama", 30, 576, 1536, 9, 3, 49152, 1e5),
    "smollm2-360m": Shape("llama", 32, 960, 2560, 15, 5, 49152, 1e5),
    "llama-3.2-1b": Shape("llama", 16, 2048, 8192, 32, 8, 128256, 5e5),
    "qwen2.5-0.5b": Shape("qwen2", 24, 896, 4864, 14, 2, 151936, 1e6),
    "llama-2-7b": Shape("llama", 32, 4096, 11008, 32, 32, 32000, 1e4, tied=False),
    "mistral-7b": Shape("llama", 32, 4096, 14336, 32, 8, 32000, 1e4, tied=False),
}


def parse(text: str) -> tuple[str, Shape, GGMLQuantizationType]:
    """ "smollm2-360m:q8_0" -> (name, shape, type). Raises TinyrvllmError with what there is."""
    name, _, kind = text.lower().partition(":")
    if name not in SHAPES or kind not in KINDS:
        raise TinyrvllmError(
            f"no shape {text!r}: expected NAME:TYPE with a name of {', '.join(SHAPES)} "
            f"and a type of {', '.join(KINDS)}"
        )
    block = GGML_QUANT_SIZES[KINDS[kind]][0]
    if SHAPES[name].hidden % block:
        raise TinyrvllmError(
            f"{kind} packs {block} values of a row together, and {name} has rows of "
            f"{SHAPES[name].hidden}: choose q8_0, q4_0 or q4_1"
        )
    return name, SHAPES[name], KINDS[kind]


def resolve(text: str) -> Path:
    """The cached file of a shape; written on first use."""
    name, shape, kind = parse(text)
    target = hub.cache_dir() / f"random-{name}-{kind.name}.gguf"
    if target.is_file():
        return target
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write(part, shape, kind)
        os.replace(part, target)  # whole or not at all, whoever else writes it meanwhile
    except OSError as error:
        raise TinyrvllmError(
            f"cannot write {target}: {error}; free some space, or point TINYRVLLM_CACHE elsewhere"
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return target


def write(
    path: Path, shape: Shape, kind: GGMLQuantizationType, seed: int = 0, hollow: bool = False
) -> None:
    """Writes a model file, a few megabytes at a time. Norms and biases are F32.

    hollow: all weights are a hole in the file, for those who only ask how long it is.
    """
    layout = [
        (name, dims, kind if len(dims) == 2 else GGMLQuantizationType.F32)
        for name, dims in shape.tensors()
    ]
    _write_header(path, shape, layout)
    sizes = [_nbytes(dims, stored) for _, dims, stored in layout]
    with (
        open(path, "r+b") as file,
        tqdm(total=sum(sizes), desc=path.stem, unit="B", unit_scale=True, disable=None) as bar,
    ):
        end = _aligned(file.seek(0, os.SEEK_END))
        for number, (name, dims, stored) in enumerate(layout):
            file.seek(end)
            end = _aligned(end + sizes[number])
            if hollow:
                continue
            for chunk in random_values(np.random.default_rng([seed, number]), name, dims, stored):
                bar.update(file.write(chunk.data))
        file.truncate(end)


def _write_header(
    path: Path,
    shape: Shape,
    layout: list[tuple[str, tuple[int, ...], GGMLQuantizationType]],
) -> None:
    writer = GGUFWriter(path, shape.architecture)
    writer.add_block_count(shape.layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.ff)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(shape.rope_base)
    # A tokenizer for any text: GPT-2's stand-ins for the 256 bytes, one merge (there must be one),
    # and tokens that no text has.
    codes = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(code) for code in codes] + [chr(code) for code in range(256, 324)]
    tokens = [*letters, "Ġa", *(f"<|{number}|>" for number in range(257, shape.vocab))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * shape.vocab)
    writer.add_token_merges(["Ġ a"])
    writer.add_eos_token_id(shape.vocab - 1)
    for name, dims, stored in layout:
        nbytes = _nbytes(dims, stored)
        writer.add_tensor_info(name, dims, np.dtype(np.float32), nbytes, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()


def random_values(
    rng: np.random.Generator, name: str, dims: tuple[int, ...], kind: GGMLQuantizationType
) -> Iterator[np.ndarray]:
    """Chunks of a tensor as the file has it: norms near 1, biases near 0, matrices that keep
    the scale of what they multiply."""
    scale = 1 / math.sqrt(dims[-1])
    for first in range(0, math.prod(dims), CHUNK):
        count = min(CHUNK, math.prod(dims) - first)
        if name.endswith("norm.weight"):
            yield rng.uniform(0.5, 1.5, count).astype(np.float32)
        elif kind in PLAIN:
            yield (rng.standard_normal(count, np.float32) * scale).astype(PLAIN[kind])
        else:
            yield random_blocks(rng, count, kind, scale)


def random_blocks(
    rng: np.random.Generator, count: int, kind: GGMLQuantizationType, scale: float
) -> np.ndarray:
    """uint8 [count / block, block_bytes]: random quants with a standard deviation of `scale`."""
    block, block_bytes = GGML_QUANT_SIZES[kind]
    blocks = np.frombuffer(rng.bytes(count // block * block_bytes), np.uint8)
    blocks = blocks.reshape(-1, block_bytes).copy()
    unit = 1.0
    for sample in (blocks[:1000], blocks):  # the first pass sees what the quants make of scale 1
        for offset, factor in SCALES[kind].items():
            sample[:, offset : offset + 2] = np.array([unit * factor], np.float16).view(np.uint8)
        if sample is not blocks:
            unit = scale / float(dequantize(sample, kind).std())
    return blocks


def _nbytes(dims: tuple[int, ...], kind: GGMLQuantizationType) -> int:
    block, block_bytes = GGML_QUANT_SIZES[kind]
    return math.prod(dims) // block * block_bytes


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
