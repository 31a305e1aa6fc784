"""Greedy decoding chained on the device: the tokens of plain steps, one command buffer ahead."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.runner.sequences import Model, Sequence, batch_of
from tests.tiny_models import write_model
from tinyrvllm import TinyrvllmError, mtl
from tinyrvllm.runner.batch import ALL_MASKED, HAS_NAN, Batch
from tinyrvllm.runner.metal import MetalRunner
from tinyrvllm.runner.numpy import NumpyRunner
from tinyrvllm.runner.options import Options

FIXTURES = Path(__file__).parent.parent / "fixtures"
EXACT = Options(batch_invariant=True, kv_f32=True)
BLOCKS = [3, 1, 15, 0, 7, 2, 4, 9, 12, 5]
IDS = [5, 9, 20, 33, 41]


def last_rows(work: list[tuple[Sequence, int]]) -> Batch:
    """A batch of block size 4 that samples the last row of each sequence."""
    batch = batch_of(work, 4)
    return replace(batch, sample_rows=batch.query_start[1:] - 1)


def prompts(count: int = 1) -> Batch:
    """`count` prompts of five tokens, each with blocks for 40 tokens."""
    sequences = [
        Sequence([i + 7, *IDS[1:]], [16 * i + block for block in BLOCKS], state_slot=i)
        for i in range(count)
    ]
    return last_rows([(sequence, 5) for sequence in sequences])


def plain(runner: MetalRunner, batch: Batch, steps: int) -> list[list[int]]:
    """The loop that the chain replaces: logits to the host, the next step from it."""
    tokens = []
    for _ in range(steps):
        tokens.append(runner.run(batch).argmax(axis=1).astype(np.int32))
        batch = batch.after(tokens[-1], 4)
    return np.array(tokens).tolist()


@pytest.mark.parametrize("name", ["llama", "lfm2"])
@pytest.mark.parametrize("indirect", [False, True])
def test_chained_tokens_are_those_of_plain_steps(
    device: mtl.Device, name: str, indirect: bool
) -> None:
    model = Model(FIXTURES / f"{name}.gguf")
    options = replace(EXACT, indirect=indirect)
    runner = MetalRunner(model, device, 16, block_size=4, options=options)
    expected = plain(runner, prompts(), 12)
    steps = list(runner.greedy(prompts(), 12))
    assert [tokens.tolist() for tokens, _ in steps] == expected
    assert not any(flags.any() for _, flags in steps)
    oracle = NumpyRunner(model, 16, 4).greedy(prompts(), 12)
    assert [tokens.tolist() for tokens, _ in oracle] == expected


def test_sequences_side_by_side(device: mtl.Device) -> None:
    """Three sequences in a bucket of four... and more than scratch holds logits of at a time."""
    model = Model(FIXTURES / "llama.gguf")
    runner = MetalRunner(model, device, 48, block_size=4, options=EXACT)
    expected = plain(runner, prompts(3), 8)
    assert [tokens.tolist() for tokens, _ in runner.greedy(prompts(3), 8)] == expected
    runner.head.max_samples = 2
    runner._programs.clear()
    assert [tokens.tolist() for tokens, _ in runner.greedy(prompts(3), 8)] == expected


def test_the_next_step_is_committed_before_this_one_is_waited_for(
    device: mtl.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = MetalRunner(Model(FIXTURES / "llama.gguf"), device, 16, block_size=4)
    (first, _), *_ = runner.greedy(prompts(), 1)
    events = []
    for name in ("commit", "wait"):
        original = getattr(mtl.Commands, name)

        def noted(self: mtl.Commands, name: str = name, original: object = original) -> None:
            if self._handle is not None:
                events.append(name)
            original(self)  # type: ignore[operator]

        monkeypatch.setattr(mtl.Commands, name, noted)
    list(runner.greedy(prompts().after(first, 4), 4))
    assert events == ["commit", "commit", "wait", "commit", "wait", "commit", "wait", "wait"]
    assert runner.step.bytes_written == 0  # by the host, in all steps but the first


def test_the_context_s_last_slot_and_a_change_of_bucket(
    device: mtl.Device, tmp_path: Path
) -> None:
    """Up to the end of the pool, over a boundary of context buckets (512)."""
    model = Model(write_model(tmp_path / "tiny.gguf", keys={"{arch}.context_length": 528}))
    runner = MetalRunner(model, device, 33, options=Options(kv_f32=True))
    ids = [3 + i * 7 % 200 for i in range(505)]
    batch = batch_of([(Sequence(ids, list(range(33))), 505)], 16)
    batch = replace(batch, sample_rows=np.array([504], np.int32))
    chained = [int(tokens[0]) for tokens, _ in runner.greedy(batch, 24)]
    logits = runner.run(batch)
    again = []
    for step in range(24):
        again.append(int(logits.argmax()))
        if step < 23:
            batch = batch.after(np.array(again[-1:], np.int32), 16)
            logits = runner.run(batch)
    assert chained == again


def test_a_reader_may_stop_early_and_another_batch_may_run(device: mtl.Device) -> None:
    runner = MetalRunner(Model(FIXTURES / "llama.gguf"), device, 16, block_size=4, options=EXACT)
    expected = plain(runner, prompts(), 6)
    stopped = runner.greedy(prompts(), 20)
    assert [next(stopped)[0].tolist() for _ in range(3)] == expected[:3]
    stopped.close()
    assert not runner.step.buffer.in_flight
    left = runner.greedy(prompts(), 20)
    assert [next(left)[0].tolist() for _ in range(3)] == expected[:3]
    assert len(runner.step.buffer.in_flight) == 1
    assert plain(runner, prompts(), 6) == expected
    with pytest.raises(TinyrvllmError, match="another batch has run since"):
        next(left)


@pytest.mark.parametrize(
    ("output", "flags"), [(np.nan, HAS_NAN | ALL_MASKED), (-np.inf, ALL_MASKED)]
)
def test_rows_that_are_no_distribution_are_flagged(
    device: mtl.Device, tmp_path: Path, output: float, flags: int
) -> None:
    """A norm weight of NaN or infinity spoils every logit."""
    spoiled = {"output_norm.weight": np.full(64, np.nan)}
    if output == -np.inf:  # x * inf * -1, for a table of minus ones times a norm's infinity
        spoiled = {
            "output_norm.weight": np.full(64, np.inf),
            "output.weight": np.full((267, 64), -1.0),
            "token_embd.weight": np.full((267, 64), 1e3),
        }
    model = Model(write_model(tmp_path / "bad.gguf", tied=False, tensors=spoiled))
    runners = MetalRunner(model, device, 16, block_size=4, options=EXACT), NumpyRunner(model, 16, 4)
    for runner in runners:
        with np.errstate(invalid="ignore"):
            assert [f.tolist() for _, f in runner.greedy(prompts(), 2)] == [[flags]] * 2
