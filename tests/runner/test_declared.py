"""Programs on the checking device: no report, and no byte touched that is not declared."""

import dataclasses
import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.runner.declared import Watch, subtract
from tests.runner.sequences import Model, Sequence, batch_of
from tinyrvllm import mtl
from tinyrvllm.kernels.launch import Argument, unused
from tinyrvllm.runner.metal import MetalRunner
from tinyrvllm.runner.options import Options
from tinyrvllm.runner.program import Program

FIXTURES = Path(__file__).parent.parent / "fixtures"


@pytest.fixture(scope="module")
def checking() -> Iterator[mtl.Device]:
    with mtl.open_device("soft:check") as opened:
        yield opened
        gc.collect()  # a watched runner refers to itself


@pytest.mark.parametrize("simdgroups", [0, 2048])
@pytest.mark.parametrize("name", ["llama", "gemma3", "lfm2", "qwen2"])
def test_programs_touch_what_they_declare(
    checking: mtl.Device, name: str, simdgroups: int
) -> None:
    """A prefill, a chunk beside a decode, and three chained decode steps of two sequences."""
    expected = np.load(FIXTURES / f"{name}.npz")
    ids, logits = expected["ids"].tolist(), expected["logits"]
    model, options = Model(FIXTURES / f"{name}.gguf"), Options(simdgroups=simdgroups)
    runner = MetalRunner(model, checking, 20, block_size=4, options=options)
    watch = Watch(runner)
    try:
        one, two = (Sequence(ids[i], list(range(10 * i, 10 * i + 10)), i) for i in (0, 1))
        runner.run(batch_of([(one, 7)], 4))
        runner.run(batch_of([(two, 6), (one, 1)], 4))
        batch = batch_of([(one, 1), (two, 1)], 4)
        first, *_ = runner.greedy(batch, 3)
    finally:
        watch.close()
    assert watch.found == []
    assert watch.dispatches > 5 * 6 * runner.config.num_layers
    assert first[0].tolist() == [logits[0][8].argmax(), logits[1][6].argmax()]


def launches_of(runner: MetalRunner) -> tuple:
    runner.run(batch_of([(Sequence([5], [0]), 1)], 4))
    return runner.last_programs[0].launches


def test_a_declaration_that_is_too_small_is_caught(checking: mtl.Device) -> None:
    runner = MetalRunner(Model(FIXTURES / "llama.gguf"), checking, 20, block_size=4)
    launches = list(launches_of(runner))
    embed = launches[0]
    narrow = Argument(embed.write_set[0].part(0, 16), embed.arguments[2].access)
    arguments = (*embed.arguments[:2], narrow, embed.arguments[3])
    launches[0] = dataclasses.replace(embed, arguments=arguments)
    runner.last_programs[0].launches = tuple(launches)
    watch = Watch(runner)
    try:
        runner.run(batch_of([(Sequence([5], [0]), 1)], 4))
    finally:
        watch.close()
    assert len(watch.found) == 1
    assert watch.found[0].startswith("embed writes undeclared addresses")


def test_a_declaration_that_is_missing_costs_a_barrier_and_is_caught(checking: mtl.Device) -> None:
    """Q's projection, said not to read x, would run beside the embedding that writes it."""
    runner = MetalRunner(Model(FIXTURES / "llama.gguf"), checking, 20, block_size=4)
    launches = list(launches_of(runner))
    q = launches[1]
    arguments = tuple(
        argument if argument.span.nbytes == 0 or slot in (1, 5) else unused(argument.span)
        for slot, argument in enumerate(q.arguments)
    )
    launches[1] = dataclasses.replace(q, arguments=arguments)
    broken = Program(checking, launches[:2], "broken")
    assert [len(phase) for phase in broken.phases] == [2]
    with pytest.raises(mtl.MetalError, match="missing barrier: dispatch 0 .* writes bytes"):
        runner._finish(runner._submit([broken]))


def test_subtraction_of_ranges() -> None:
    assert subtract([(0, 10), (20, 30)], [(2, 5), (8, 25)]) == [(0, 2), (5, 8), (25, 30)]
    assert subtract([(3, 5)], [(0, 10)]) == []
