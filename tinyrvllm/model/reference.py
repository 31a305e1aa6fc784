"""The oracle: the supported models in numpy. Every kernel is compared with it.

It computes in float32 (or float64) from dequantised weights. A matrix is dequantised when it is
first used and then kept, [out, in] as in the file: one row is one output's weights, which is how
BLAS reads memory in order. Matrices that share their input are stacked into one.
"""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from tinyrvllm.model import dequantize, layers
from tinyrvllm.model.config import ModelConfig
from tinyrvllm.model.weights import Weights

QUERY_TILE = 256  # queries at once in attention: bounds the scores to heads * 256 * context


class SequenceCache(Protocol):
    """What one sequence of the batch has in the cache."""

    rows: slice  # its rows in this step's arrays
    start: int  # the position of the first of them

    def keys_values(self, layer: int, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of the positions first:end: [end - first, kv_heads, head_dim]."""

    def conv_history(self, layer: int) -> np.ndarray:
        """The last inputs of a convolution layer: [kernel - 1, hidden]; zero at the start."""

    def set_conv_history(self, layer: int, history: np.ndarray) -> None: ...


class Cache(Protocol):
    """What the layers remember between steps; the runner decides where it lives."""

    @property
    def sequences(self) -> Sequence[SequenceCache]: ...

    def write(self, layer: int, keys: np.ndarray, values: np.ndarray) -> None:
        """Keep this step's keys and values: [T, kv_heads, head_dim]."""


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

    def forward(self, token_ids: np.ndarray, positions: np.ndarray, cache: Cache) -> np.ndarray:
        """The hidden states after the last layer and its norm: [T, hidden]."""
        x = self.embed(token_ids)
        rope = Rope(self.config, positions, self.dtype)
        with np.errstate(over="ignore"):  # exp(-x) of a very negative gate: x / inf is 0, rightly
            for layer in self.layers:
                x = layer(x, rope, cache)
        return layers.rms_norm(x, self.get(self.config.output_norm), self.config.norm_eps)

    def embed(self, token_ids: np.ndarray) -> np.ndarray:
        """The rows of the embedding: [T, hidden]. Only these rows are dequantised."""
        rows = self.weights.rows("token_embd.weight", token_ids)
        return rows.astype(self.dtype) * self.dtype(self.config.embedding_scale)

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """hidden [R, hidden] -> [R, vocab]."""
        head = "token_embd.weight" if self.config.tied_output else "output.weight"
        logits = hidden @ self.get(head).T
        cap = self.config.final_softcap
        return logits if cap is None else np.tanh(logits / cap) * cap

    def get(self, *names: str) -> np.ndarray:
        """Tensors as one array, stacked along the first axis; dequantised once and kept."""
        if names not in self._stacks:
            raw = [self.weights.raw(name) for name in names]
            if len(raw[0].shape) == 1:
                vectors = [dequantize.dequantize(data, kind)[0] for data, kind, _ in raw]
                self._stacks[names] = np.concatenate(vectors).astype(self.dtype)
            else:
                self._stacks[names] = dequantize.stacked(raw, self._arena)
        return self._stacks[names]


class Rope:
    """cos and sin for this step's positions, computed once for the layers that share them."""

    def __init__(self, config: ModelConfig, positions: np.ndarray, dtype: type) -> None:
        self.config = config
        self.positions = positions
        self.dtype = dtype
        self._tables: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}

    def __call__(self, layer: int, x: np.ndarray) -> None:
        """Rotate x [T, heads, head_dim] in place."""
        inv_freq = self.config.rope_inv_freq(layer)
        key = inv_freq.tobytes()
        if key not in self._tables:
            cos, sin = layers.rope_tables(self.positions, inv_freq)
            self._tables[key] = cos.astype(self.dtype), sin.astype(self.dtype)
        layers.rotate(x, *self._tables[key], self.config.rope_interleaved)


class Layer:
    """x + mix(norm(x)), then x + feed_forward(norm(x)); Gemma 2 and 3 norm what they add, too."""

    def __init__(self, model: Reference, index: int) -> None:
        self.config = model.config
        self.get = lambda *names: model.get(*(f"blk.{index}.{name}" for name in names))
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
        gate_up = x @ self.get("ffn_gate.weight", "ffn_up.weight").T  # [T, 2 * intermediate]
        gate, up = np.split(gate_up, 2, axis=-1)
        act = layers.silu if self.config.activation == "silu" else layers.gelu_tanh
        return (act(gate) * up) @ self.get("ffn_down.weight").T


class Attention:
    def __init__(self, config: ModelConfig, index: int, get: Callable[..., np.ndarray]) -> None:
        self.config = config
        self.index = index
        self.get = get

    def __call__(self, x: np.ndarray, rope: Rope, cache: Cache) -> np.ndarray:
        """x [T, hidden] -> [T, hidden]."""
        config, heads, kv_heads = self.config, self.config.num_heads, self.config.num_kv_heads
        qkv = x @ self.get("attn_q.weight", "attn_k.weight", "attn_v.weight").T
        if config.qkv_bias:
            qkv += self.get("attn_q.bias", "attn_k.bias", "attn_v.bias")
        qkv = qkv.reshape(len(x), heads + 2 * kv_heads, config.head_dim)
        q, k, v = np.split(qkv, [heads, heads + kv_heads], axis=1)  # views [T, heads, head_dim]
        if config.qk_norm:
            q[...] = layers.rms_norm(q, self.get("attn_q_norm.weight"), config.norm_eps)
            k[...] = layers.rms_norm(k, self.get("attn_k_norm.weight"), config.norm_eps)
        rope(self.index, qkv[:, : heads + kv_heads])
        cache.write(self.index, k, v)
        mixed = np.empty((len(x), heads * config.head_dim), x.dtype)
        for sequence in cache.sequences:
            self.attend(q, sequence, mixed)
        return mixed @ self.get("attn_output.weight").T

    def attend(self, q: np.ndarray, sequence: SequenceCache, out: np.ndarray) -> None:
        """Attention of one sequence's rows to all it has in the cache, tile by tile."""
        config, window = self.config, self.config.sliding_window[self.index]
        for row in range(sequence.rows.start, sequence.rows.stop, QUERY_TILE):
            rows = slice(row, min(row + QUERY_TILE, sequence.rows.stop))
            first = sequence.start + row - sequence.rows.start  # position of the tile's first query
            end = first + rows.stop - rows.start
            oldest = 0 if window is None else max(0, first - window + 1)
            k, v = sequence.keys_values(self.index, oldest, end)
            out[rows] = layers.attention(
                q[rows], k, v, config.attn_scale, window, config.attn_softcap
            )


class ShortConvolution:
    """LFM2's mixer: b, c, x = split(in_proj(x)); out_proj(c * conv(b * x))."""

    def __init__(self, config: ModelConfig, index: int, get: Callable[..., np.ndarray]) -> None:
        self.index = index
        self.get = get

    def __call__(self, x: np.ndarray, rope: Rope, cache: Cache) -> np.ndarray:
        """x [T, hidden] -> [T, hidden]."""
        b, c, x = np.split(x @ self.get("shortconv.in_proj.weight").T, 3, axis=-1)
        bx = b * x
        weight = self.get("shortconv.conv.weight")  # [hidden, kernel]
        mixed = np.empty_like(bx)
        for sequence in cache.sequences:
            history = sequence.conv_history(self.index)
            mixed[sequence.rows], history = layers.short_conv(bx[sequence.rows], weight, history)
            sequence.set_conv_history(self.index, history)
        return (c * mixed) @ self.get("shortconv.out_proj.weight").T
