"""The examples do what they say."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.tiny_models import write_model
from tinyrvllm import LLM, SamplingParams

EXAMPLES = Path(__file__).parents[1] / "examples"
PROMPTS = ["Hello", "", "The hello", "x" * 600, "in the"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(rows: list[dict[str, object]], path: Path) -> None:
    """The answers to PROMPTS, whose second is empty and whose fourth is too long."""
    assert [row["prompt"] for row in rows] == PROMPTS
    assert "the prompt is empty" in rows[1]["error"]
    assert "has 600 tokens" in rows[3]["error"]
    with LLM(path, device="cpu") as llm:
        for number in (0, 2, 4):
            params = SamplingParams(max_tokens=8, seed=number)
            expected = llm.generate(PROMPTS[number], params)[0].text
            assert (rows[number]["text"], rows[number]["error"]) == (expected, "")


def test_a_ray_worker_answers_a_batch(tiny: Path) -> None:
    """Without Ray: what it would call."""
    worker = load("ray_batch").Answer(str(tiny), "cpu", 8)
    columns = worker({"line": np.arange(5), "prompt": np.array(PROMPTS, object)})
    worker.llm.close()
    rows = zip(*columns.values(), strict=True)
    check([dict(zip(columns, row, strict=True)) for row in rows], tiny)


@pytest.mark.long
def test_ray_runs_a_file_of_prompts(tiny: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason='this environment has no Ray: pip install "ray[data]"')
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS) + "\n")
    arguments = ["--model", str(tiny), "--device", "cpu", "--workers", "2", "-n", "8"]
    subprocess.run(
        [sys.executable, EXAMPLES / "ray_batch.py", "prompts.txt", "answers.jsonl", *arguments],
        cwd=tmp_path, env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
        check=True, timeout=600,
    )
    lines = (tmp_path / "answers.jsonl").read_text().splitlines()
    check([json.loads(line) for line in lines], tiny)
