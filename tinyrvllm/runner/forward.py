"""The model as kernel launches: the same path as `model/reference.py`, one dispatch at a time.

A Llama layer at up to 4 rows is 8 dispatches in 6 dependent phases:

    q, k, v        matvec, the norm folded in: x * weight on the way in, 1 / rms on the way out
    rope           Q/K norm, rotation, and K and V into the cache
    attention      straight from the blocks
    attn_output    adds the residual, leaves the next norm's sums of squares
    gate and up    with the norm and silu(gate) * up folded in
    ffn_down       adds the residual, leaves sums of squares

At more rows each norm is a dispatch of its own: 10 in 8 phases. A fused norm repeats no arithmetic
but the multiplication by its weight, once for each simdgroup that reads a value of x. A GPU of many
cores has too many of those: there the projections multiply, q, k and v are one dispatch, and
attention rotates what it reads where all sequences decode: 5 dispatches in 5 phases.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tinyrvllm.kernels import (
    attention,
    conv,
    elementwise,
    embedding,
    gemm,
    gemm_tensor,
    ksplit,
    matvec,
    reduce,
    rope,
)
from tinyrvllm.kernels.kv_cache import KvLayout
from tinyrvllm.kernels.launch import Launch, Span
from tinyrvllm.kernels.matmul import FUSED_ROWS, FusedNorm, Matmul
from tinyrvllm.kernels.quant import joined
from tinyrvllm.model.config import ModelConfig
from tinyrvllm.runner.options import Options
from tinyrvllm.runner.step import Bucket, StepBuffer
from tinyrvllm.runner.tensors import DeviceTensors


class Forward:
    """Builds the launches of steps on one device. Scratch is shared by all buckets.

    pools: for each layer (keys, values), or (state,) of a short convolution.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: DeviceTensors,
        step: StepBuffer,
        scratch: dict[str, Span],
        layout: KvLayout,
        pools: Sequence[tuple[Span, ...]],
        options: Options,
    ) -> None:
        self.config = config
        self.tensors = tensors
        self.step = step
        self.scratch = scratch
        self.layout = layout
        self.pools = pools
        self.options = options

    def body(self, bucket: Bucket) -> list[Launch]:
        """From token ids to the last layer's output in scratch "x": [rows, hidden]."""
        return Body(self, bucket).launches

    def uses_matvec(self, rows: int) -> bool:
        return rows <= self.options.matvec_rows or self.options.batch_invariant

    def multiply(self, matmul: Matmul) -> Launch:
        """The kernel for this many rows."""
        if self.uses_matvec(matmul.rows):
            return matvec.launch(matmul, self.options.simdgroups)
        if matmul.rows <= self.options.ksplit_rows:
            return ksplit.launch(matmul, self.options.simdgroups)
        return (gemm_tensor if self.options.tensor_ops else gemm).launch(matmul)

    def norm(
        self, name: str, x: Span, y: Span, rows: int, residual: Span | None = None
    ) -> Launch:
        config = self.config
        weight = self.tensors.vector(name)
        return reduce.rmsnorm(x, weight, y, rows, config.hidden_size, config.norm_eps, residual)

    def folded(self, name: str, writer: str | None, first: int = 0) -> dict[str, Any]:
        """What a matvec multiplies, as Matmul has it: x from row `first` on, and the norm `name`.

        writer: who wrote x last and left sums of squares, a projection, or None for the embedding.
        On a GPU of many cores it has left x times the norm's weight, too: see `Body.project`.
        """
        hidden, epsilon = self.config.hidden_size, self.config.norm_eps
        x, squares, many = self.scratch["x"], self.scratch["squares"], self.options.simdgroups
        if writer is None:
            parts = embedding.squares_parts(hidden)
        else:
            wrote = Matmul(self.scratch["feed"], self.tensors.matrix(writer), x, 1)
            parts = matvec.squares_parts(wrote, many)
            if many:
                stride = matvec.next_stride(wrote, many)
                x = squares.tail(4 * first * stride)
                norm = FusedNorm(None, x.tail(4 * hidden), parts, epsilon, stride)
                return {"x": x, "x_stride": stride, "norm": norm}
        squares = squares.tail(4 * first * parts)
        norm = FusedNorm(self.tensors.vector(name), squares, parts, epsilon)
        return {"x": x.tail(4 * first * hidden), "norm": norm}


class Body:
    """The layers of one bucket, appended to `launches`."""

    def __init__(self, forward: Forward, bucket: Bucket) -> None:
        self.forward = forward
        self.config = config = forward.config
        self.bucket = bucket
        self.rows = bucket.rows
        self.fuse = can_fuse(config, forward.options, bucket.rows)
        self.many = forward.options.simdgroups > 0
        self.scratch = forward.scratch
        self.launches: list[Launch] = []
        self.writer: str | None = None  # the projection that wrote x; None: the embedding
        table = forward.tensors.matrix("token_embd.weight")
        ids, x = forward.step.spans["token_ids"], self.scratch["x"]
        self.launches.append(
            embedding.launch(
                ids, table, x, self.rows, config.embedding_scale,
                squares=self.scratch["squares"] if self.fuse else None,
            )
        )  # fmt: skip
        for layer in range(config.num_layers):
            self.layer(layer)

    def layer(self, index: int) -> None:
        """x + mix(norm(x)), then x + feed_forward(norm(x)), in place."""
        name = f"blk.{index}."
        if self.config.layer_kinds[index] == "attention":
            self.attention(index, name)
            mixer, post_norm = "attn_output.weight", name + "post_attention_norm.weight"
        else:
            self.short_convolution(index, name)
            mixer, post_norm = "shortconv.out_proj.weight", ""
        self.project(name + mixer, "mixed", post_norm, name + "ffn_norm.weight")
        self.feed_forward(name)
        last = index + 1 == self.config.num_layers
        following = self.config.output_norm if last else f"blk.{index + 1}.attn_norm.weight"
        self.project(name + "ffn_down.weight", "feed", name + "post_ffw_norm.weight", following)

    def attention(self, index: int, name: str) -> None:
        config, forward, scratch = self.config, self.forward, self.scratch
        step = forward.step.spans
        normed = self.normed(name + "attn_norm.weight")
        weights = [forward.tensors.matrix(f"{name}attn_{part}.weight") for part in "qkv"]
        q, k, v = (scratch[part] for part in "qkv")
        strides = [weight.outputs for weight in weights]
        all_three, apart = None, config.qkv_bias
        if self.many and forward.uses_matvec(self.rows) and not apart:
            all_three = joined(weights)
        if all_three is not None:  # one dispatch; rows of q, k and v side by side
            q = Span(q.buffer, q.offset, q.nbytes + k.nbytes + v.nbytes)
            k, v = q.tail(4 * strides[0]), q.tail(4 * (strides[0] + strides[1]))
            strides = [all_three.outputs] * 3
            self.multiply(Matmul(weight=all_three, y=q, rows=self.rows, **normed))
        else:
            for part, weight, y in zip("qkv", weights, (q, k, v), strict=True):
                bias = f"{name}attn_{part}.bias" if config.qkv_bias else None
                self.multiply(
                    Matmul(
                        weight=weight, y=y, rows=self.rows, **normed,
                        bias=forward.tensors.vector(bias) if bias else None,
                    )
                )  # fmt: skip
        norms = None
        if config.qk_norm:
            q_norm, k_norm = (f"{name}attn_{part}_norm.weight" for part in "qk")
            norms = forward.tensors.vector(q_norm), forward.tensors.vector(k_norm)
        k_pool, v_pool = forward.pools[index]
        turns, three = forward.tensors.turns(index), (strides[0], strides[1], strides[2])
        unrotated = None
        if self.many and not self.bucket.prefills and not forward.options.batch_invariant:
            unrotated = rope.Unrotated(
                k, v, turns, config.head_dim, config.rope_interleaved, three[1:], norms,
                config.norm_eps,
            )
        else:
            self.launches.append(
                rope.rope_and_store(
                    q, k, v, turns, step["positions"], step["slots"], k_pool, v_pool,
                    forward.layout, self.rows, config.num_heads, config.head_dim,
                    config.rope_interleaved, three, norms=norms, norm_epsilon=config.norm_eps,
                )
            )  # fmt: skip
        attend = attention.Attention(
            q=q, q_stride=strides[0], k_pool=k_pool, v_pool=v_pool, block_tables=step["block_tables"],
            context_lens=step["context_lens"], query_start=step["query_start"],
            out=scratch["mixed"], layout=forward.layout, heads=config.num_heads,
            sequences=self.bucket.sequences, max_blocks=forward.step.blocks(self.bucket),
            scale=config.attn_scale, window=config.sliding_window[index] or 0,
            softcap=config.attn_softcap or 0.0, spread=self.many,
            unrotated=unrotated,
        )  # fmt: skip
        if self.bucket.decodes:
            self.launches += attention.decode(attend, self.bucket.context, scratch["partial"])
        if self.bucket.prefills:
            self.launches.append(attention.prefill(attend, self.rows))

    def short_convolution(self, index: int, name: str) -> None:
        """LFM2's mixer: b, c, x = split(in_proj(x)); c * conv(b * x) into scratch "mixed"."""
        config, forward, step = self.config, self.forward, self.forward.step.spans
        normed = self.normed(name + "attn_norm.weight")
        weight, bcx = forward.tensors.matrix(name + "shortconv.in_proj.weight"), self.scratch["bcx"]
        self.multiply(Matmul(weight=weight, y=bcx, rows=self.rows, **normed))
        (state,) = forward.pools[index]
        self.launches.append(
            conv.launch(
                bcx, forward.tensors.vector(name + "shortconv.conv.weight"), state,
                self.scratch["mixed"], step["query_start"], step["positions"],
                step["state_slots"], self.rows, self.bucket.sequences, config.hidden_size,
                config.conv_kernel,
            )
        )  # fmt: skip

    def feed_forward(self, name: str) -> None:
        """activation(gate(x)) * up(x) into scratch "feed"."""
        forward, scratch = self.forward, self.scratch
        normed = self.normed(name + "ffn_norm.weight")
        gate = forward.tensors.matrix(name + "ffn_gate.weight")
        up = forward.tensors.matrix(name + "ffn_up.weight")
        activation = self.config.activation
        if gate.kind == up.kind:
            self.multiply(
                Matmul(
                    weight=gate, y=scratch["feed"], rows=self.rows, up=up, activation=activation,
                    **normed,
                )
            )  # fmt: skip
            return
        self.multiply(Matmul(weight=gate, y=scratch["feed"], rows=self.rows, **normed))
        self.multiply(Matmul(weight=up, y=scratch["up"], rows=self.rows, **normed))
        count = self.rows * self.config.intermediate_size
        self.launches.append(
            elementwise.gate(scratch["feed"], scratch["up"], scratch["feed"], count, activation)
        )

    def project(self, weight: str, source: str, post_norm: str, next_norm: str) -> None:
        """x += source W^T; Gemma 2 and 3 norm what they add. A folded norm of what follows gets
        its sums of squares, and on a GPU of many cores x times its weight."""
        forward, scratch, x = self.forward, self.scratch, self.scratch["x"]
        self.writer = weight
        matrix = forward.tensors.matrix(weight)
        if self.config.post_norms:
            self.multiply(Matmul(scratch[source], matrix, scratch["normed"], self.rows))
            self.launches.append(
                forward.norm(post_norm, scratch["normed"], x, self.rows, residual=x)
            )
            return
        matmul = Matmul(scratch[source], matrix, x, self.rows, residual=x)
        if self.fuse:
            matmul = replace(matmul, squares=scratch["squares"])
        if self.fuse and self.many:
            matmul = replace(
                matmul, next_weight=forward.tensors.vector(next_norm),
                next_stride=matvec.next_stride(matmul, forward.options.simdgroups),
            )  # fmt: skip
        self.multiply(matmul)

    def normed(self, name: str) -> dict[str, Any]:
        """What to multiply, as Matmul has it: x and a norm to fold in, or the norm's output."""
        forward, scratch = self.forward, self.scratch
        if self.fuse:
            return forward.folded(name, self.writer)
        self.launches.append(forward.norm(name, scratch["x"], scratch["normed"], self.rows))
        return {"x": scratch["normed"]}

    def multiply(self, matmul: Matmul) -> None:
        self.launches.append(self.forward.multiply(matmul))


def can_fuse(config: ModelConfig, options: Options, rows: int) -> bool:
    """Whether norms can be folded: matvec does the multiplications, and no norm follows them.

    Not where the number of rows must make no difference: a folded norm adds up in another order.
    """
    fuse = options.fuse and not options.batch_invariant
    return fuse and rows <= min(options.matvec_rows, FUSED_ROWS) and not config.post_norms
