"""What each key and tensor does to a model's text: the same tiny files, continued by llama.cpp.

The bytes were recorded from llama.cpp 11434 with float32 weights and cache (`llama-completion
--temp 0 -n 16 -no-cnv --ignore-eos -ctk f32 -ctv f32 -fa off`).
"""

from pathlib import Path

import numpy as np
import pytest

from tests.tiny_models import write_model
from tinyrvllm import LLM, SamplingParams

PROMPT = "the hello in on a tree, all of the ferns"  # longer than the windows of 8
WINDOW = "{arch}.attention.sliding_window"
FACTORS = {"rope_freqs.weight": np.linspace(1, 8, 8)}
STRETCHED = {"{arch}.rope.scaling.factor": 4.0}
BIASES = [f"blk.{layer}.attn_{name}.bias" for layer in (0, 1) for name in "qkv"]
# name: (architecture, options of the model, seed of its weights, what llama.cpp wrote). The seeds
# are those of 24 where no token is close to another: by 0.02 at least.
CASES: dict[str, tuple[str, dict, int, str]] = {
    "llama": ("llama", {}, 8, "e2770c79798079797979793434343434"),
    "qwen2": ("qwen2", {}, 3, "063c3c3c3c3c3c3c3c3c3c3c3c3c3c3c"),
    "qwen3": ("qwen3", {"head_dim": 32}, 2, "6c6c6c4444444444f91120745c145c1444"),
    "gemma": ("gemma", {"head_dim": 32}, 20, "73737373737373737373737391919191"),
    "gemma2": ("gemma2", {}, 7, "73a0a047474747474747474747474747"),
    "gemma3": ("gemma3", {"head_dim": 32}, 23, "207468650f0f9e3c3c3c3c3c3c3c20746e6e6e8d"),
    "lfm2": ("lfm2", {}, 2, "a13b5e321c3b3b509a03539aa78aaa83"),
    "linear scaling": ("llama", {"keys": STRETCHED}, 13, "6865800e800e800e802a808080808022de"),
    "linear scaling, old key": (
        "llama",
        {"keys": {"{arch}.rope.scale_linear": 4.0}},
        13,
        "6865800e800e800e802a808080808022de",
    ),
    "no scaling": (
        "llama",
        {"keys": {**STRETCHED, "{arch}.rope.scaling.type": "none"}},
        8,
        "e2770c79798079797979793434343434",
    ),
    "rope_freqs": ("llama", {"tensors": FACTORS}, 12, "68537a704919f65ed649c019f6081919"),
    "rope_freqs and linear scaling": (
        "llama",
        {"keys": STRETCHED, "tensors": FACTORS},
        7,
        "b0e05d3d5daf4d658989898989894444",
    ),
    "untied": ("llama", {"tied": False}, 8, "abfa8a256e3f3f3f6e08ab6b66d16633"),
    "one key-value head, no optional keys": (
        "llama",
        {
            "num_kv_heads": 1,
            "keys": {
                "{arch}.attention.key_length": None,
                "{arch}.attention.value_length": None,
                "{arch}.rope.freq_base": None,
            },
        },
        14,
        "2b0340404020742074207420742074157a7a157a15",
    ),
    "qwen2 without biases": (
        "qwen2",
        {"tensors": dict.fromkeys(BIASES)},
        15,
        "e00b0b0b0b0b0b0be3ae0d7777777777",
    ),
    "gemma2 with tight caps": (
        "gemma2",
        {
            "num_layers": 4,
            "keys": {"{arch}.attn_logit_softcapping": 2.0, "{arch}.final_logit_softcapping": 3.0},
        },
        13,
        "7c7c7c7ca01c1c1c1c1c1c1c1c1c1c1c",
    ),
    "gemma2 27B": (
        "gemma2",
        {"num_layers": 46, "head_dim": 32},
        17,
        "4ccbcbcba63c204747f7f7495e5e5e5e",
    ),
    "gemma3 27B": (
        "gemma3",
        {"num_layers": 62, "head_dim": 32},
        23,
        "191919192372e4e4e4d80c83d8d8d871",
    ),
    "gemma3, period 2": (
        "gemma3",
        {"keys": {WINDOW + "_pattern": 2}},
        7,
        "739957070707742f383838383d3d2c2c",
    ),
    "gemma3, pattern": (
        "gemma3",
        {"keys": {WINDOW + "_pattern": [True, False, False, True, True, False]}},
        1,
        "29e6e6f3f3f39b474747e0e0e0e0e0e0",
    ),
    "gemma3 without a window": (
        "gemma3",
        {"keys": {WINDOW: None}},
        22,
        "cacacacacacacacacaca4f4f02020202",
    ),
    "gemma3 with a local base and a factor": (
        "gemma3",
        {"keys": {"{arch}.rope.freq_base_swa": 500.0, "{arch}.rope.scaling.factor": 8.0}},
        7,
        "2424245757575f725050508989894f4f",
    ),
    "lfm2 with a window": (
        "lfm2",
        {"num_layers": 5, "keys": {WINDOW: 4}},
        3,
        "0d20746865e8c643c169638e713b9edf3d6fdc",
    ),
}


@pytest.mark.parametrize(
    ("architecture", "options", "seed", "expected"), CASES.values(), ids=CASES.keys()
)
def test_text_is_llamacpp_s(
    tmp_path: Path, architecture: str, options: dict, seed: int, expected: str
) -> None:
    path = write_model(tmp_path / "model.gguf", architecture, seed=seed, **options)
    llm = LLM(path, device="cpu")
    params = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True)
    (output,) = llm.generate(PROMPT, params)
    assert llm.model.tokenizer.decode(output.token_ids).hex() == expected
