"""The activations of a step: sizes, and how many rows fit into what a runner may take."""

from tinyrvllm.kernels import argmax, attention
from tinyrvllm.kernels.launch import Span
from tinyrvllm.kernels.matmul import FUSED_ROWS, MATVEC_ROWS
from tinyrvllm.model.config import ModelConfig
from tinyrvllm.mtl import Device
from tinyrvllm.runner.step import SIZES, step_bytes

BUDGET = 15 << 20  # bytes of a runner beside weights and cache, constants (under 1 MB) apart
LOGITS_BYTES = 8 << 20  # how many rows are sampled at once follows
MAX_SAMPLES = 32
PARTIAL_BYTES = 2 << 20  # of split attention: how many long sequences decode at once follows


def max_samples(config: ModelConfig) -> int:
    """Rows whose logits are kept at a time."""
    return max(MATVEC_ROWS, min(MAX_SAMPLES, LOGITS_BYTES // (4 * config.vocab_size)))


def decoding_rows(config: ModelConfig, context: int) -> int:
    """Sequences of up to `context` tokens that may decode at once."""
    splits = attention.decode_splits(context)
    if splits == 1:
        return SIZES[-1]
    fitting = PARTIAL_BYTES // _partial_bytes(config, splits)
    return max((size for size in SIZES if size <= fitting), default=1)


def plan(
    config: ModelConfig, max_context: int, block_size: int, gate_and_up_differ: bool
) -> tuple[int, dict[str, int]]:
    """(the most rows of a step, bytes of each scratch array): all that BUDGET allows."""
    for rows in reversed(SIZES):
        sizes = scratch_sizes(config, rows, max_context, gate_and_up_differ)
        total = sum(sizes.values()) + step_bytes(rows, max_context, block_size)
        if total <= BUDGET:
            break
    return rows, sizes


def scratch_sizes(
    config: ModelConfig, rows: int, max_context: int, gate_and_up_differ: bool
) -> dict[str, int]:
    """Bytes of each scratch array for steps of up to `rows` rows."""
    width, kv_width = (
        heads * config.head_dim for heads in (config.num_heads, config.num_kv_heads)
    )
    samples, splits = max_samples(config), attention.decode_splits(max_context)
    floats = {
        "x": rows * config.hidden_size,
        "normed": max(rows, samples) * config.hidden_size,
        "gathered": samples * config.hidden_size,
        "q": rows * width,  # q, k and v side by side: `Body.attention` may join them
        "k": rows * kv_width,
        "v": rows * kv_width,
        "mixed": rows * max(width, config.hidden_size),
        "bcx": rows * 3 * config.hidden_size if "conv" in config.layer_kinds else 0,
        "partial": max(PARTIAL_BYTES, _partial_bytes(config, splits)) // 4 if splits > 1 else 0,
        "feed": rows * config.intermediate_size,
        "up": rows * config.intermediate_size if gate_and_up_differ else 0,
        "squares": min(rows, FUSED_ROWS) * (2 * config.hidden_size + 4),
        "logits": samples * config.vocab_size,
        "winners": rows * argmax.chunks(config.vocab_size) * argmax.WINNER_BYTES // 4,
        "indices": samples,
        "flags": samples,
    }
    return {name: -(-count // 4) * 16 for name, count in floats.items()}


def allocate(device: Device, sizes: dict[str, int]) -> dict[str, Span]:
    """The arrays, side by side in one buffer."""
    buffer = device.buffer(sum(sizes.values()), "scratch")
    spans, offset = {}, 0
    for name, nbytes in sizes.items():
        spans[name] = Span(buffer, offset, nbytes)
        offset += nbytes
    return spans


def _partial_bytes(config: ModelConfig, splits: int) -> int:
    """Of one sequence."""
    return 4 * config.num_heads * splits * (config.head_dim + 2)
