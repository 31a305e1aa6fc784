"""Real models on the soft device beside the oracle: the error of logits, and the tokens.

The inputs are texts and float32 continuations of tests/reference. A prompt is cut into chunks, and
sequences decode side by side, so that every kernel has its turn.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.runner.conftest import ERRORS
from tests.runner.sequences import Model, Sequence, batch_of
from tinyrvllm import mtl
from tinyrvllm.runner import Runner
from tinyrvllm.runner.metal import MetalRunner
from tinyrvllm.runner.numpy import NumpyRunner
from tinyrvllm.runner.options import Options

REFERENCE = Path(__file__).parent.parent / "reference"
FILES = {
    "smollm2-135m": "smollm2-135m-q4_1",
    "gemma-3-270m": "gemma3-270m-q4_k_m",
    "qwen2.5-coder-0.5b": "qwen2.5-coder-0.5b-q4_k_m",
}
# The worst difference of a logit from float32, as measured, with room for another CPU's rounding.
BOUNDS = {"f32": 0.25, "f16": 0.25}
PROMPTS, STEPS = ("capital", "story", "para"), 12


def steps(name: str) -> Iterator[list[tuple[int, int]]]:
    """(sequence, rows) of each step: chunks of 3 and more, then decoding, forced."""
    lengths = [len(ids) - STEPS for ids in texts(name)]
    yield [(i, 3) for i in range(len(lengths))]
    yield [(i, n - 3) for i, n in enumerate(lengths)]
    yield from [[(i, 1) for i in range(len(lengths))]] * STEPS


def texts(name: str) -> list[list[int]]:
    """Prompts with the first STEPS tokens of their continuations."""
    file = json.loads((REFERENCE / f"{FILES[name]}.transformers-f32.json").read_text("utf-8"))
    found = [p for p in file["prompts"] if p["name"] in PROMPTS]
    return [p["ids"][:100] + p["greedy64_ids_ignoring_eog"][:STEPS] for p in found]


def logits(runner: Runner, name: str) -> np.ndarray:
    """Of all rows of all steps, float32 [rows, vocab]."""
    blocks = 8
    sequences = [
        Sequence(ids, list(range(blocks * i, blocks * i + blocks)))
        for i, ids in enumerate(texts(name))
    ]
    return np.concatenate([
        runner.run(batch_of([(sequences[i], n) for i, n in step], 16)) for step in steps(name)
    ])  # fmt: skip


def compare(found: np.ndarray, oracle: np.ndarray, name: str, kv_type: str) -> None:
    """Notes the errors; tokens must be equal wherever the oracle's margin exceeds the worst."""
    error = np.abs(found - oracle)
    worst, rms = float(error.max()), float(np.sqrt((error**2).mean()))
    second, first = np.partition(oracle, -2)[:, -2:].T
    same = found.argmax(-1) == oracle.argmax(-1)
    ERRORS[f"{name}, {kv_type} KV"] = worst, rms, int((~same).sum()), len(same)
    assert worst < BOUNDS[kv_type]
    assert same[first - second > worst].all()


def check(path: Path, name: str, kv_types: tuple[str, ...]) -> None:
    model = Model(path)
    oracle = logits(NumpyRunner(model, 8 * len(PROMPTS)), name)
    for kv_type in kv_types:
        with mtl.open_device("soft") as device:
            options = Options(kv_f32=kv_type == "f32")
            found = logits(MetalRunner(model, device, 8 * len(PROMPTS), options=options), name)
            compare(found, oracle, name, kv_type)


@pytest.mark.real_model
def test_smollm2(real_model: Callable[[str], Path]) -> None:
    check(real_model("smollm2-135m"), "smollm2-135m", ("f16",))


@pytest.mark.long
@pytest.mark.real_model
@pytest.mark.parametrize("name", FILES)
def test_every_real_model_and_kv_type(real_model: Callable[[str], Path], name: str) -> None:
    check(real_model(name), name, ("f32", "f16"))


@pytest.mark.long
@pytest.mark.real_model
@pytest.mark.parametrize("name", FILES)
def test_long_texts(real_model: Callable[[str], Path], name: str) -> None:
    """Past Gemma's sliding window: the argmax of transformers wherever its margin is clear."""
    file = json.loads((REFERENCE / f"{FILES[name]}.long.json").read_text("utf-8"))
    ids, argmax, margins = (np.array(file[key]) for key in ("ids", "argmax", "margin"))
    with mtl.open_device("soft") as device:
        runner = MetalRunner(Model(real_model(name)), device, -(-len(ids) // 16))
        sequence = Sequence(ids.tolist(), list(range(-(-len(ids) // 16))))
        found = []
        while sequence.done < len(ids):
            rows = min(128, len(ids) - sequence.done)
            found.append(runner.run(batch_of([(sequence, rows)], 16)).argmax(-1))
    same = np.concatenate(found) == argmax
    assert same[margins > BOUNDS["f16"]].all()
