"""However a text is cut into steps, batched and laid out in blocks, its logits are the same.

The truth is what `transformers` computed for the tiny models of tests/fixtures, all at once.
"""

import dataclasses
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runner.sequences import Model, Sequence, batch_of
from tinyrvllm.model import linear
from tinyrvllm.runner import numpy
from tinyrvllm.runner.numpy import NumpyRunner

FIXTURES = Path(__file__).parent.parent / "fixtures"
NAMES = sorted(path.stem for path in FIXTURES.glob("*.gguf"))
TOLERANCE = 1e-4  # measured: at most 3e-5 in logits of standard deviation 1.8


@cache
def load(name: str) -> tuple[Model, list, np.ndarray]:
    """(model, ids [2, 40], logits [2, 40, vocab])."""
    expected = np.load(FIXTURES / f"{name}.npz")
    return Model(FIXTURES / f"{name}.gguf"), expected["ids"].tolist(), expected["logits"]


def open_fixture(name: str, block_size: int = 4, blocks: int = 32) -> tuple:
    """(a runner whose caches hold NaN, ids, logits)."""
    model, ids, logits = load(name)
    runner = NumpyRunner(model, blocks, block_size, max_seqs=3)
    for pools in (runner.kv, runner.conv_states):
        for pool in pools.values():
            pool.fill(np.nan)
    return runner, ids, logits


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk", [40, 7, 1])
def test_chunks_of_a_prompt(name: str, chunk: int) -> None:
    runner, ids, logits = open_fixture(name)
    sequence = Sequence(ids[0], list(range(10)))
    for first in range(0, 40, chunk):
        n = min(chunk, 40 - first)
        found = runner.run(batch_of([(sequence, n)], 4))
        np.testing.assert_allclose(found, logits[0][first : first + n], atol=TOLERANCE)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_schedule(data: st.DataObject) -> None:
    """Sequences join, advance by any number of tokens, and lie in any blocks, side by side."""
    block_size = data.draw(st.sampled_from([1, 3, 4, 16]))
    needed = -(-40 // block_size)
    runner, ids, logits = open_fixture(data.draw(st.sampled_from(NAMES)), block_size, 2 * needed)
    blocks = data.draw(st.permutations(range(2 * needed)))
    sequences = [
        Sequence(ids[0], blocks[:needed], state_slot=2),
        Sequence(ids[1], blocks[needed:], state_slot=0),
    ]
    while waiting := [i for i in (0, 1) if sequences[i].done < 40]:
        chosen = data.draw(st.lists(st.sampled_from(waiting), min_size=1, unique=True))
        work, expected = [], []
        for i in chosen:
            start = sequences[i].done
            n = data.draw(st.integers(1, 40 - start))
            work.append((sequences[i], n))
            expected.append(logits[i][start : start + n])
        found = runner.run(batch_of(work, block_size))
        np.testing.assert_allclose(found, np.concatenate(expected), atol=TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_blocks_and_state_slots_are_used_again(name: str) -> None:
    runner, ids, logits = open_fixture(name)
    for i in (0, 1, 0):
        found = runner.run(batch_of([(Sequence(ids[i], list(range(10))), 40)], 4))
        np.testing.assert_allclose(found, logits[i], atol=TOLERANCE)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "lfm2"])
def test_sequences_share_the_blocks_of_a_prefix(name: str) -> None:
    runner, ids, logits = open_fixture(name)
    first = Sequence(ids[0], list(range(10)))
    runner.run(batch_of([(first, 40)], 4))
    second = Sequence(ids[0], [0, 1, 2, 20, 21, 22, 23, 24, 25, 26], done=12)
    found = runner.run(batch_of([(second, 28)], 4))
    np.testing.assert_allclose(found, logits[0][12:], atol=TOLERANCE)


def test_logits_of_the_rows_asked_for() -> None:
    runner, ids, logits = open_fixture("qwen3")
    batch = batch_of([(Sequence(ids[0], list(range(10))), 40)], 4)
    rows = np.array([39, 0, 7], np.int32)
    found = runner.run(dataclasses.replace(batch, sample_rows=rows))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, logits[0][rows], atol=TOLERANCE)
    none = dataclasses.replace(batch, sample_rows=rows[:0])
    assert runner.run(none).shape == (0, runner.reference.config.vocab_size)


@pytest.mark.parametrize("name", NAMES)
def test_float64_and_float32_agree(name: str) -> None:
    model, ids, _ = load(name)
    single, double = (
        NumpyRunner(model, 10, 4, dtype=dtype).run(
            batch_of([(Sequence(ids[0], list(range(10))), 40)], 4)
        )
        for dtype in (np.float32, np.float64)
    )
    np.testing.assert_allclose(single, double, atol=TOLERANCE)


# ---- parts of a step in threads of their own


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any step of 6 rows is computed in three parts of 2, on machines where one thread is best."""
    monkeypatch.setattr(linear, "threads", lambda: 3)
    monkeypatch.setattr(numpy, "PART_ROWS", 2)


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("name", NAMES)
def test_parts_side_by_side(name: str) -> None:
    """A part waits for what the parts before it write: here they cut both sequences."""
    runner, ids, logits = open_fixture(name)
    sequences = [Sequence(ids[i], list(range(10 * i, 10 * i + 10)), i) for i in (0, 1)]
    for steps in ((20, 7), (1, 14), (7, 1)):
        firsts = [sequence.done for sequence in sequences]
        found = runner.run(batch_of(list(zip(sequences, steps, strict=True)), 4))
        expected = [logits[i][first : first + steps[i]] for i, first in enumerate(firsts)]
        np.testing.assert_allclose(found, np.concatenate(expected), atol=TOLERANCE)


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("broken", [0, 1, 2])
def test_a_part_that_fails_fails_the_step(broken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for it in vain, and the next step is as good as any."""
    runner, ids, logits = open_fixture("llama")
    original = numpy.PagedCache.write

    def write(cache: numpy.PagedCache, *arguments: object) -> None:
        if len(cache.before) == broken:
            raise MemoryError("a part of the step")
        original(cache, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(numpy.PagedCache, "write", write)
        with pytest.raises(MemoryError, match="a part of the step"):
            runner.run(batch_of([(Sequence(ids[0], list(range(10))), 12)], 4))
    found = runner.run(batch_of([(Sequence(ids[0], list(range(10))), 12)], 4))
    np.testing.assert_allclose(found, logits[0][:12], atol=TOLERANCE)
