"""Whatever happens to requests, blocks are accounted for and texts are those of batch 1."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.engine.machine import machine_of
from tests.tiny_models import write_model
from tinyrvllm import model as models
from tinyrvllm import mtl
from tinyrvllm.runner.metal import MetalRunner
from tinyrvllm.runner.numpy import NumpyRunner
from tinyrvllm.runner.options import Options

SHORT = settings(
    max_examples=25, stateful_step_count=30, deadline=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
LONG = settings(SHORT, max_examples=2000, stateful_step_count=50)


def numpy_runner(
    model: models.Model, blocks: int, block_size: int, seqs: int, batch_invariant: bool
) -> NumpyRunner:
    return NumpyRunner(model, blocks, block_size, seqs, batch_invariant=batch_invariant)


def tiny(folder: Path, architecture: str) -> Path:
    return write_model(
        folder / f"{architecture}.gguf", architecture, hidden=32, ff=64, num_heads=2, num_kv_heads=1
    )


@pytest.mark.parametrize("invariant_mode", [True, False], ids=["batch_invariant", "default"])
@pytest.mark.parametrize("architecture", ["llama", "lfm2"])
def test_a_short_life(tmp_path: Path, architecture: str, invariant_mode: bool) -> None:
    machine = machine_of(tiny(tmp_path, architecture), numpy_runner, invariant_mode)
    run_state_machine_as_test(machine, settings=SHORT)


@pytest.mark.long
@pytest.mark.parametrize(
    ("architecture", "invariant_mode"),
    [("llama", True), ("lfm2", True), ("gemma3", True), ("lfm2", False)],
)
def test_two_thousand_lives(tmp_path: Path, architecture: str, invariant_mode: bool) -> None:
    machine = machine_of(tiny(tmp_path, architecture), numpy_runner, invariant_mode)
    run_state_machine_as_test(machine, settings=LONG)


@pytest.mark.parametrize("architecture", ["llama", "lfm2"])
def test_a_few_lives_on_a_device(tmp_path: Path, architecture: str) -> None:
    with mtl.open_device("soft") as device:

        def metal_runner(
            model: models.Model, blocks: int, block_size: int, seqs: int, batch_invariant: bool
        ) -> MetalRunner:
            options = Options(batch_invariant=batch_invariant, kv_f32=True)
            return MetalRunner(model, device, blocks, block_size, seqs, options)

        machine = machine_of(tiny(tmp_path, architecture), metal_runner, True)
        run_state_machine_as_test(machine, settings=settings(SHORT, max_examples=3))
