"""The recorded programs against `transformers`, and what they cost.

The truth is what `transformers` computed for the tiny models of tests/fixtures, as in
test_numpy.py; the difference is the half-precision cache and weight tiles.
"""

import dataclasses
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.runner.sequences import Model, Sequence, batch_of
from tests.tiny_models import write_model
from tinyrvllm import TinyrvllmError, mtl
from tinyrvllm.runner import scratch
from tinyrvllm.runner.batch import Batch
from tinyrvllm.runner.metal import MetalRunner
from tinyrvllm.runner.options import Options
from tinyrvllm.runner.step import MAX_ROWS, step_bytes

FIXTURES = Path(__file__).parent.parent / "fixtures"
NAMES = sorted(path.stem for path in FIXTURES.glob("*.gguf"))
# Logits have a standard deviation of 1.8.
TOLERANCE = 2e-2  # half-precision cache, and weight tiles of ksplit and gemm
F32_TOLERANCE = 2e-4  # float32 cache and matvec: the order of summation only
PINNED = Options(batch_invariant=True, kv_f32=True)


@cache
def load(name: str) -> tuple[Model, list[list[int]], np.ndarray]:
    """(model, ids [2, 40], logits [2, 40, vocab])."""
    expected = np.load(FIXTURES / f"{name}.npz")
    return Model(FIXTURES / f"{name}.gguf"), expected["ids"].tolist(), expected["logits"]


@pytest.mark.parametrize("name", NAMES)
def test_every_architecture_in_chunks(device: mtl.Device, name: str) -> None:
    model, ids, logits = load(name)
    runner = MetalRunner(model, device, 16, block_size=4, options=PINNED)
    sequence = Sequence(ids[0], [3, 1, 15, 0, 7, 2, 4, 9, 12, 5])
    for n in (20, 1, 1, 18):
        first = sequence.done
        found = runner.run(batch_of([(sequence, n)], 4))
        np.testing.assert_allclose(found, logits[0][first : first + n], atol=F32_TOLERANCE)


def test_half_precision_is_close(device: mtl.Device) -> None:
    model, ids, logits = load("llama")
    runner = MetalRunner(model, device, num_blocks=10, block_size=4)
    sequence = Sequence(ids[0], list(range(10)))
    for n in (30, 6, 1, 3):
        first = sequence.done
        found = runner.run(batch_of([(sequence, n)], 4))
        np.testing.assert_allclose(found, logits[0][first : first + n], atol=TOLERANCE)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_schedule(device: mtl.Device, data: st.DataObject) -> None:
    """Two sequences advance by any number of tokens and lie in any blocks, side by side."""
    model, ids, logits = load("llama")
    pinned, indirect = data.draw(st.booleans()), data.draw(st.booleans())
    runner = MetalRunner(
        model, device, 24, block_size=4,
        options=Options(batch_invariant=pinned, kv_f32=True, indirect=indirect),
    )  # fmt: skip
    blocks = data.draw(st.permutations(range(24)))
    sequences = [Sequence(ids[0], blocks[:10]), Sequence(ids[1], blocks[10:20])]
    while work := [
        (sequence, data.draw(st.integers(1, min(40 - sequence.done, 20))))
        for sequence in sequences
        if sequence.done < 40
    ]:
        expected = [
            logits[sequences.index(sequence)][sequence.done : sequence.done + n]
            for sequence, n in work
        ]
        found = runner.run(batch_of(work, 4))
        tolerance = F32_TOLERANCE if pinned else TOLERANCE
        np.testing.assert_allclose(found, np.concatenate(expected), atol=tolerance)


def test_rows_beyond_one_command_buffer(device: mtl.Device, tmp_path: Path) -> None:
    """A prompt longer than MAX_ROWS is cut; every row's logits come back at its place."""
    model = Model(write_model(tmp_path / "tiny.gguf"))
    ids = [3 + i * 7 % 200 for i in range(MAX_ROWS + 20)]
    runner = MetalRunner(model, device, 16, options=PINNED)
    whole = runner.run(batch_of([(Sequence(ids, list(range(16))), len(ids))], 16))
    again = Sequence(ids, list(range(16)))
    cut = [runner.run(batch_of([(again, n)], 16)) for n in (100, len(ids) - 100)]
    np.testing.assert_allclose(whole, np.concatenate(cut), atol=F32_TOLERANCE)


def test_some_rows_and_none(device: mtl.Device) -> None:
    model, ids, logits = load("llama")
    runner = MetalRunner(model, device, 10, block_size=4, options=PINNED)
    batch = batch_of([(Sequence(ids[0], list(range(10))), 40)], 4)
    for rows in ([39], [0, 7, 39], []):
        wanted = dataclasses.replace(batch, sample_rows=np.array(rows, np.int32))
        found = runner.run(wanted)
        np.testing.assert_allclose(found, logits[0][rows], atol=F32_TOLERANCE)


def test_indirect_replay_gives_the_same_bits(device: mtl.Device) -> None:
    model, ids, _ = load("llama")
    found = []
    for indirect in (False, True):
        runner = MetalRunner(model, device, 10, block_size=4, options=Options(indirect=indirect))
        sequence = Sequence(ids[0], list(range(10)))
        found.append([runner.run(batch_of([(sequence, n)], 4)) for n in (30, 1, 1)])
    for direct, replayed in zip(*found, strict=True):
        np.testing.assert_array_equal(direct, replayed)


def test_batch_invariant_rows_do_not_depend_on_their_neighbours(device: mtl.Device) -> None:
    model, ids, _ = load("llama")
    runner = MetalRunner(model, device, 30, block_size=4, options=PINNED)
    sequences = [Sequence(ids[i % 2], list(range(10 * i, 10 * i + 10))) for i in range(3)]
    together = runner.run(batch_of([(s, n) for s, n in zip(sequences, (9, 5, 7), strict=True)], 4))
    alone = runner.run(batch_of([(Sequence(ids[1], list(range(10, 20))), 5)], 4))
    np.testing.assert_array_equal(together[9:14], alone)


@pytest.mark.parametrize("name", ["llama", "gemma3", "lfm2"])
def test_everything_in_one_step(device: mtl.Device, name: str) -> None:
    """A chunk of 33 rows of a prompt, 7 decodes, and a prompt whose prefix is in the cache."""
    model, ids, logits = load(name)
    runner = MetalRunner(model, device, 90, block_size=4)
    chunked = Sequence(ids[0], list(range(10)), 0)
    decoding = [
        Sequence(ids[i % 2], list(range(10 * i + 10, 10 * i + 20)), i + 1) for i in range(7)
    ]
    first = Sequence(ids[1], list(range(80, 90)), 8)
    runner.run(
        batch_of([(chunked, 5), (first, 12), *((s, 3 * i + 2) for i, s in enumerate(decoding))], 4)
    )
    # The convolution's state is not in the cache: there the sequence itself goes on.
    prefixed = dataclasses.replace(first)
    work = [(chunked, 33), *((sequence, 1) for sequence in decoding), (prefixed, 9)]
    truth = [(0, 5, 33), *((i % 2, 3 * i + 2, 1) for i in range(7)), (1, 12, 9)]
    found = runner.run(batch_of(work, 4))
    expected = np.concatenate([logits[row][start : start + n] for row, start, n in truth])
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


# ---- costs that do not depend on time


def decodes(rows: int) -> Batch:
    """One token for each of `rows` sequences."""
    return batch_of([(Sequence([5], [i]), 1) for i in range(rows)], 16)


@pytest.mark.parametrize("fuse", [True, False])
def test_phases_and_dispatches_of_a_layer(device: mtl.Device, tmp_path: Path, fuse: bool) -> None:
    """At most 6 phases and 9 dispatches a layer at 1 to 4 rows, 10 dispatches at others."""
    counts = {}
    for layers in (2, 3):
        model = Model(write_model(tmp_path / f"{layers}.gguf", num_layers=layers))
        runner = MetalRunner(model, device, 64, options=Options(fuse=fuse))
        for rows in (1, 4, 8, 16, 32):
            runner.run(decodes(rows))
            logits = runner.report()
            list(runner.greedy(decodes(rows), 2))
            greedy = runner.report()
            counts[layers, rows] = logits.dispatches, logits.phases, greedy.phases
    for rows in (1, 4, 8, 16, 32):
        dispatches, phases, _ = np.subtract(counts[3, rows], counts[2, rows])
        outside = np.subtract(counts[2, rows][1:], 2 * phases).tolist()  # for logits, for tokens
        if fuse and rows <= 4:  # embedding, vocabulary; and argmax of chunks, of rows with advance
            assert (dispatches, phases, outside) == (8, 6, [2, 4])
        else:  # the last norm is a phase too
            assert (dispatches, phases, outside) == (10, 8, [3, 5])


def test_a_step_allocates_nothing_and_writes_only_the_step_buffer(device: mtl.Device) -> None:
    model, ids, _ = load("llama")
    runner = MetalRunner(model, device, 10, block_size=4)
    sequence = Sequence(ids[0], list(range(10)))
    for n in (20, 1):
        runner.run(batch_of([(sequence, n)], 4))
    for _ in range(5):
        runner.run(batch_of([(sequence, 1)], 4))
        assert runner.report().allocations == 0
    # 1 row: 3 numbers of the row, 2 of the sequence, 2 of query_start, 10 blocks, 1 sample
    assert runner.report().host_bytes == 4 * (3 + 2 + 2 + 10 + 1)


def test_weights_are_not_copied(device: mtl.Device, tmp_path: Path) -> None:
    model = Model(write_model(tmp_path / "tiny.gguf"))
    runner = MetalRunner(model, device, 4)
    spans = runner.forward.tensors.spans
    (buffer,) = {id(span.buffer): span.buffer for span in spans.values()}.values()
    seen = buffer.numpy(np.uint8)
    assert seen.ctypes.data == model.file.memory.ctypes.data
    assert not seen.flags.writeable


@pytest.mark.parametrize("shape", [(576, 1536, 9, 30, 49152), (4096, 14336, 32, 32, 128256)])
def test_scratch_is_at_most_15_mb(shape: tuple[int, ...]) -> None:
    """With the constants and results, under 16 MB beside the file and the KV pool."""
    hidden, ff, heads, layers, vocab = shape
    config = dataclasses.replace(
        load("llama")[0].config, hidden_size=hidden, intermediate_size=ff, num_heads=heads,
        num_layers=layers, vocab_size=vocab, head_dim=hidden // heads,
    )  # fmt: skip
    for context in (512, 8192, 32768):
        rows, sizes = scratch.plan(config, context, 16, gate_and_up_differ=True)
        assert rows >= 16
        assert sum(sizes.values()) + step_bytes(rows, context, 16) <= 15 << 20


def test_buffers_are_the_file_the_pool_and_16_mb(tmp_path: Path) -> None:
    model = Model(write_model(tmp_path / "tiny.gguf"))
    with mtl.open_device("soft") as device:
        runner = MetalRunner(model, device, 32)
        for rows in (1, 3, 8, 20):
            list(runner.greedy(decodes(rows), 2))
        live = device.objc.runtime.live()  # type: ignore[attr-defined]
        nbytes = sum(obj.nbytes for obj in live if type(obj).__name__ == "MTLBuffer")
        pool = 2 * runner.layout.nbytes * model.config.num_layers
        assert nbytes <= model.file.memory.nbytes + pool + (16 << 20)
        assert "MTLResidencySet" in {type(obj).__name__ for obj in live}
        del runner


def test_a_file_longer_than_a_buffer_is_seen_through_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """88 MB of weights on a device whose buffers end at 64 MB, and at 9."""
    model = Model(write_model(tmp_path / "tiny.gguf", hidden=512, ff=4096, num_layers=3,
                              num_heads=8, type=GGMLQuantizationType.F32))  # fmt: skip
    ids = list(range(3, 20))
    expected = None
    for limit in (1 << 30, 64 << 20, 9 << 20):
        with mtl.open_device("soft") as device:
            limits = dataclasses.replace(device.limits, max_buffer_length=limit)
            monkeypatch.setattr(device, "limits", limits)
            runner = MetalRunner(model, device, 2, options=PINNED)
            spans = runner.forward.tensors.spans.values()
            count = len({id(span.buffer) for span in spans})
            assert (count > 1) == (limit < 1 << 30)
            found = runner.run(batch_of([(Sequence(ids, [0, 1]), 17)], 16))
            if expected is not None:
                np.testing.assert_array_equal(found, expected)
            expected = found


def test_a_working_set_that_is_too_small_is_refused(
    device: mtl.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(write_model(tmp_path / "tiny.gguf"))
    limits = dataclasses.replace(device.limits, recommended_working_set=1000)
    monkeypatch.setattr(device, "limits", limits)
    with pytest.raises(TinyrvllmError, match="working set of at most 1,000"):
        MetalRunner(model, device, 4)


@pytest.mark.parametrize("indirect", [False, True])
def test_a_profile_has_every_dispatch_of_a_replay(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], indirect: bool
) -> None:
    """And the profiled run computes the same."""
    model, ids, _ = load("llama")
    batch = batch_of([(Sequence(ids[0], list(range(10))), 5)], 4)
    found = []
    for profile in ("", "1"):
        monkeypatch.setenv("TINYRVLLM_METAL_PROFILE", profile)
        with mtl.open_device("soft") as device:
            runner = MetalRunner(model, device, 10, 4, options=Options(indirect=indirect))
            found.append(runner.run(batch))
            report = runner.report()
            if profile:
                calls = {}
                for (kernel, _, _), times in device.profile.rows.items():  # type: ignore[union-attr]
                    calls[kernel] = calls.get(kernel, 0) + len(times)
            del runner
    np.testing.assert_array_equal(*found)
    assert calls == report.kernels == report.total_kernels
    assert "attend_tile" in capsys.readouterr().err
