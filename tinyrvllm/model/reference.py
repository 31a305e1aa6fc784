"""The oracle: the supported models in numpy. Every kernel is compared with it.

It computes in float32 (or float64) from dequantised weights. A matrix is dequantised when it is
first used and then kept. Matrices that share their input are stacked into one, [out, in], which is
then laid out as suits `linear`.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

import numpy as np

from tinyrvllm.model import dequantize, layers
from tinyrvllm.model.config import ModelConfig
from tinyrvllm.model.linear import block_width, gated, linear
from tinyrvllm.model.weights import RawTensor, Weights

Index = np.ndarray | tuple[slice | None, ...]  # of an array: whole numbers, or a view of it


@dataclass(frozen=True)
class Piece:
    """Queries that attend together: n rows of each of S sequences, to c positions of the cache."""

    rows: Index  # [S, n] of this step's arrays
    slots: np.ndarray | slice  # int [S, c] in the cache, or one sequence's if they are in a row
    mask: np.ndarray | None  # [S, n, c] see layers.attention_mask


class Cache(Protocol):
    """What the layers remember between steps; the runner decides where it lives."""

    def write(self, layer: int, keys_values: np.ndarray) -> None:
        """Keep this step's keys, then its values: [T, 2 * kv_heads, head_dim]."""

    def pieces(self, window: int | None) -> Sequence[Piece]:
        """All rows of the step, in pieces, with what they see through a window of that size."""

    def read(self, layer: int, piece: Piece) -> tuple[np.ndarray, np.ndarray]:
        """The keys and values that a piece sees: [S, c, kv_heads, head_dim] each."""

    def conv_histories(self, layer: int) -> Iterator[tuple[slice, np.ndarray]]:
        """Each sequence's rows, and its last inputs before them: [kernel - 1, hidden].

        The caller overwrites these inputs with the last ones of its own.
        """


class Reference:
    """A model as functions of its weights. `dtype` is float32 or float64."""

    def __init__(
        self, config: ModelConfig, weights: Weights, dtype: type[np.floating] = np.float32
    ) -> None:
        self.config = config
        self.weights = weights
        self.dtype = dtype
        self.layers = [Layer(self, index) for index in range(config.num_layers)]
        self._stacks: dict[tuple[str, ...], np.ndarray] = {}
        self._arena = dequantize.Arena(sum(map(math.prod, weights.shapes.values())), dtype)
        self._lock = Lock()  # of the stacks: parts of a step may run side by side

    def forward(self, token_ids: np.ndarray, positions: np.ndarray, cache: Cache) -> np.ndarray:
        """The hidden states after the last layer and its norm: [T, hidden]."""
        x = self.embed(token_ids)
        rope = Rope(self.config, positions, self.dtype)
        for layer in self.layers:
            x = layer(x, rope, cache)
        return layers.rms_norm(x, self.get(self.config.output_norm), self.config.norm_eps)

    def embed(self, token_ids: np.ndarray) -> np.ndarray:
        """The rows of the embedding: [T, hidden]. Only these rows are dequantised."""
        data, kind, _ = self.weights.raw("token_embd.weight")
        rows = dequantize.dequantize(data[token_ids], kind)
        return rows.astype(self.dtype) * self.dtype(self.config.embedding_scale)

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """hidden [R, hidden] -> [R, vocab]."""
        head = "token_embd.weight" if self.config.tied_output else "output.weight"
        logits = linear(hidden, self.get(head))
        cap = self.config.final_softcap
        return logits if cap is None else np.tanh(logits / cap) * cap

    def get(self, *names: str) -> np.ndarray:
        """Tensors as one array, stacked along the first axis; dequantised once and kept."""
        with self._lock:
            if names not in self._stacks:
                self._stacks[names] = self._stack([self.weights.raw(name) for name in names])
            return self._stacks[names]

    def _stack(self, tensors: list[RawTensor]) -> np.ndarray:
        if len(tensors[0].shape) == 1:
            vectors = [dequantize.dequantize(data, kind)[0] for data, kind, _ in tensors]
            return np.concatenate(vectors).astype(self.dtype)
        outputs, (_, inputs) = [tensor.shape[0] for tensor in tensors], tensors[0].shape
        width = block_width(outputs, inputs, self.dtype)
        return dequantize.stacked(tensors, self._arena, width)


class Rope:
    """The rotations of this step's positions, computed once for the layers that share them."""

    def __init__(self, config: ModelConfig, positions: np.ndarray, dtype: type) -> None:
        self.config = config
        self.positions = positions
        self.dtype = np.result_type(dtype, np.complex64)
        self._tables: dict[tuple[float, float], np.ndarray] = {}

    def __call__(self, layer: int, x: np.ndarray) -> None:
        """Rotate x [T, heads, head_dim] in place."""
        key = self.config.rope_bases[layer], self.config.rope_linear_factors[layer]
        if key not in self._tables:
            table = layers.rope_table(self.positions, self.config.rope_inv_freq(layer))
            self._tables[key] = table.astype(self.dtype)
        layers.rotate(x, self._tables[key], self.config.rope_interleaved)


class Layer:
    """x + mix(norm(x)), then x + feed_forward(norm(x)); Gemma 2 and 3 norm what they add, too."""

    def __init__(self, model: Reference, index: int) -> None:
        self.config = model.config
        self.get = functools.cache(
            lambda *names: model.get(*(f"blk.{index}.{name}" for name in names))
        )
        kind = Attention if self.config.layer_kinds[index] == "attention" else ShortConvolution
        self.mix = kind(self.config, index, self.get)

    def __call__(self, x: np.ndarray, rope: Rope, cache: Cache) -> np.ndarray:
        mixed = self.mix(self.norm("attn_norm", x), rope, cache)
        if self.config.post_norms:
            mixed = self.norm("post_attention_norm", mixed)
        x = x + mixed
        fed = self.feed_forward(self.norm("ffn_norm", x))
        if self.config.post_norms:
            fed = self.norm("post_ffw_norm", fed)
        return x + fed

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        return layers.rms_norm(x, self.get(f"{name}.weight"), self.config.norm_eps)

    def feed_forward(self, x: np.ndarray) -> np.ndarray:
        """down(act(gate(x)) * up(x)) (Shazeer 2020)."""
        act = layers.silu if self.config.activation == "silu" else layers.gelu_tanh
        gate_up = self.get("ffn_gate.weight", "ffn_up.weight")
        return gated(x, gate_up, self.get("ffn_down.weight"), act)


class Attention:
    def __init__(self, config: ModelConfig, index: int, get: Callable[..., np.ndarray]) -> None:
        self.config = config
        self.index = index
        self.get = get

    def __call__(self, x: np.ndarray, rope: Rope, cache: Cache) -> np.ndarray:
        """x [T, hidden] -> [T, hidden]."""
        config, heads, kv_heads = self.config, self.config.num_heads, self.config.num_kv_heads
        qkv = linear(x, self.get("attn_q.weight", "attn_k.weight", "attn_v.weight"))
        if config.qkv_bias:
            qkv += self.get("attn_q.bias", "attn_k.bias", "attn_v.bias")
        qkv = qkv.reshape(len(x), heads + 2 * kv_heads, config.head_dim)
        q, k = qkv[:, :heads], qkv[:, heads:-kv_heads]
        if config.qk_norm:
            q[...] = layers.rms_norm(q, self.get("attn_q_norm.weight"), config.norm_eps)
            k[...] = layers.rms_norm(k, self.get("attn_k_norm.weight"), config.norm_eps)
        rope(self.index, qkv[:, : heads + kv_heads])
        cache.write(self.index, qkv[:, heads:])
        mixed = np.empty((len(x), heads * config.head_dim), x.dtype)
        for piece in cache.pieces(config.sliding_window[self.index]):
            keys, values = cache.read(self.index, piece)
            mixed[piece.rows] = layers.attention(
                q[piece.rows], keys, values, config.attn_scale, piece.mask, config.attn_softcap
            )
        return linear(mixed, self.get("attn_output.weight"))


class ShortConvolution:
    """LFM2's mixer: b, c, x = split(in_proj(x)); out_proj(c * conv(b * x))."""

    def __init__(self, config: ModelConfig, index: int, get: Callable[..., np.ndarray]) -> None:
        self.index = index
        self.get = get

    def __call__(self, x: np.ndarray, rope: Rope, cache: Cache) -> np.ndarray:
        """x [T, hidden] -> [T, hidden]."""
        b, c, x = np.split(linear(x, self.get("shortconv.in_proj.weight")), 3, axis=-1)
        bx = b * x
        weight = self.get("shortconv.conv.weight")  # [hidden, kernel]
        mixed = np.empty_like(bx)
        for rows, history in cache.conv_histories(self.index):
            mixed[rows], history[...] = layers.short_conv(bx[rows], weight, history)
        return linear(c * mixed, self.get("shortconv.out_proj.weight"))
