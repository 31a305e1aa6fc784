"""The public API: many requests at a time, and every way that one can end."""

import _thread
import gc
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.test_text import first_stop
from tests.tiny_models import write_model
from tinyrvllm import LLM, SamplingParams, TinyrvllmError
from tinyrvllm.engine.llm import Delta, QueueFull, RequestsFailed
from tinyrvllm.runner.options import Options

INVARIANT = Options(batch_invariant=True)  # where texts of different batches are compared
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
ENDLESS = SamplingParams(temperature=0, max_tokens=1 << 19, ignore_eos=True)
PROMPTS = ["Hello", "one two three", "x" * 70, "the end of the line"]
GUARD_SECONDS = 300  # against hanging for ever


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose context never ends."""
    path = tmp_path_factory.mktemp("models") / "endless.gguf"
    return write_model(path, keys={"{arch}.context_length": 1 << 20})


@pytest.fixture(scope="module")
def llm(tiny: Path) -> LLM:
    return LLM(tiny, device="cpu")


def texts(llm: LLM, prompts: list[str], params: SamplingParams) -> list[str]:
    return [output.text for output in llm.generate(prompts, params)]


def test_a_batch_says_what_each_says_alone(tiny: Path) -> None:
    with LLM(tiny, device="cpu", options=INVARIANT) as llm:
        for temperature in (0, 0.9):
            params = SamplingParams(temperature=temperature, seed=5, max_tokens=20)
            together = texts(llm, PROMPTS, params)
            assert together == [texts(llm, [prompt], params)[0] for prompt in PROMPTS]
        llm.check()


def test_ways_to_ask(llm: LLM) -> None:
    (output,) = llm.generate("Hello", GREEDY)
    ids = llm.model.tokenizer.encode("Hello")
    assert llm.generate(ids, GREEDY)[0].token_ids == output.token_ids
    assert llm.generate([ids], GREEDY)[0].token_ids == output.token_ids
    assert llm.generate([b"Hello"], GREEDY)[0].token_ids == output.token_ids
    assert "".join(llm.stream("Hello", GREEDY)) == output.text
    assert llm.submit("Hello", GREEDY, request_id="mine").finish().request_id == "mine"
    assert llm.generate([], GREEDY) == []
    assert llm.chat([{"role": "user", "content": "Hi"}], GREEDY).finish().prompt == "Hi"


def test_params_for_each(llm: LLM) -> None:
    each = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (1, 3)]
    outputs = llm.generate(["a", "b"], each)
    assert [len(output.token_ids) for output in outputs] == [1, 3]
    with pytest.raises(TinyrvllmError, match="2 prompts, but 1 sampling params"):
        llm.generate(["a", "b"], each[:1])


def test_deltas_add_up(llm: LLM) -> None:
    stream = llm.stream("Hello", SamplingParams(temperature=0, max_tokens=9, logprobs=3))
    deltas = list(stream.deltas())
    output = stream.output
    assert "".join(delta.text for delta in deltas) == output.text
    assert [id for delta in deltas for id in delta.token_ids] == output.token_ids
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert output.finish_reason in ("stop", "length")
    assert output.logprobs is not None
    for token, entry in zip(output.token_ids, output.logprobs, strict=True):
        assert entry.token_id == token == entry.top[0][0]  # greedy
        assert len(entry.top) == 3
        assert entry.logprob == entry.top[0][1] <= 0
    assert 0 < output.first_token_seconds <= output.total_seconds
    assert list(stream.deltas()) == []


def test_logprobs_are_the_model_s_own(llm: LLM) -> None:
    params = SamplingParams(temperature=2, top_k=3, seed=1, max_tokens=4, logprobs=0,
                            logit_bias={7: 50.0}, ignore_eos=True)  # fmt: skip
    (output,) = llm.generate("Hello", params)
    ids = output.prompt_token_ids + output.token_ids
    logits = llm.logits(ids[:-1]).astype(np.float64)[len(output.prompt_token_ids) - 1 :]
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = logprobs[np.arange(4), output.token_ids]
    np.testing.assert_allclose([e.logprob for e in output.logprobs or []], expected, atol=1e-4)


def test_a_callback_gets_what_a_reader_would(llm: LLM) -> None:
    deltas: list[Delta] = []
    done = threading.Event()

    def take(delta: Delta) -> None:
        assert threading.current_thread() is not threading.main_thread()
        deltas.append(delta)
        if delta.finish_reason:
            done.set()

    stream = llm.submit("Hello", GREEDY, callback=take)
    assert done.wait(GUARD_SECONDS)
    stream.wait()
    assert "".join(delta.text for delta in deltas) == stream.output.text
    assert stream.output.text == llm.generate("Hello", GREEDY)[0].text


def test_a_mistake_in_a_callback_ends_only_its_request(
    llm: LLM, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(delta: Delta) -> None:
        raise RuntimeError("a listener's own mistake")

    stream = llm.submit("Hello", SamplingParams(max_tokens=400, ignore_eos=True), callback=fail)
    assert texts(llm, ["Hello"], GREEDY) == texts(llm, ["Hello"], GREEDY)
    stream.wait()
    assert stream.output.finish_reason in ("abort", "length")
    assert "a listener's own mistake" in capfd.readouterr().err
    llm.check()


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_stop_strings_streamed_or_not(llm: LLM, data: st.DataObject) -> None:
    params = {"temperature": 0, "max_tokens": 30, "ignore_eos": True}
    (whole,) = texts(llm, ["Hello"], SamplingParams(**params))
    cut = st.integers(0, len(whole) - 1).flatmap(
        lambda start: st.integers(1, 4).map(lambda n: whole[start : start + n])
    )
    stops = tuple(data.draw(st.lists(cut | st.text("abc", min_size=1, max_size=3), max_size=3)))
    stopping = SamplingParams(**params, stop=stops)
    expected = first_stop(whole, list(stops))
    assert texts(llm, ["Hello"], stopping) == [expected]
    shown = ""
    for piece in llm.stream("Hello", stopping):
        shown += piece
        assert expected.startswith(shown)
    assert shown == expected


def test_a_prefix_is_computed_once(tiny: Path) -> None:
    with LLM(tiny, device="cpu") as llm:
        beginning = list(range(3, 103))
        prompts = [[*beginning, 7, 8], [*beginning, 9], [*beginning, 7, 8], beginning[:96]]
        outputs = [llm.generate([prompt], GREEDY)[0] for prompt in prompts]
        # Whole blocks of 16; but the last token must be fed to be answered.
        assert [output.num_cached_tokens for output in outputs] == [0, 96, 96, 80]
        totals = llm.snapshot()["totals"]
        assert totals["prefix_hits"] == 96 + 96 + 80
        assert totals["prefix_queries"] == totals["prompt_tokens"] == 102 + 101 + 102 + 96
        assert ("prefix-hit", "96 tokens") in {(event[1], event[3]) for event in llm.events()}


def test_a_state_is_found_with_its_prefix(tmp_path: Path) -> None:
    """LFM2: a hit ends where the convolution state was saved, where a step ended with a block."""
    path = write_model(tmp_path / "lfm2.gguf", "lfm2")
    beginning = list(range(3, 153))
    with LLM(path, device="cpu") as llm:
        llm.generate([beginning], GREEDY)
        prompts = [[*beginning, 7], [*beginning[:100], 9]]
        cached = [llm.generate([prompt], GREEDY)[0].num_cached_tokens for prompt in prompts]
        assert cached == [144, 0]
    with (
        LLM(path, device="cpu", options=INVARIANT) as llm,
        LLM(path, device="cpu", options=INVARIANT, prefix_cache=False) as plain,
    ):
        llm.generate([beginning], GREEDY)
        for prompt, hit in zip(prompts, (128, 64), strict=True):  # chunks of 64
            (output,) = llm.generate([prompt], GREEDY)
            assert output.num_cached_tokens == hit
            assert output.token_ids == plain.generate([prompt], GREEDY)[0].token_ids


def test_a_small_pool_preempts_and_loses_nothing(tiny: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    with LLM(tiny, device="cpu", options=INVARIANT) as roomy:
        expected = [output.token_ids for output in roomy.generate(PROMPTS, params)]
    with LLM(tiny, device="cpu", options=INVARIANT, num_blocks=10) as llm:
        outputs = llm.generate(PROMPTS, params)
        assert [output.token_ids for output in outputs] == expected
        now = llm.snapshot()
        assert now["totals"]["preemptions"] > 0
        # Every sampled token counts, once: those sampled at prefill, and those fed again.
        assert now["totals"]["generation_tokens"] == sum(len(ids) for ids in expected)
        assert all(block["refs"] == 0 for block in now["blocks"])
        llm.check()


@pytest.mark.parametrize("architecture", ["llama", "lfm2"])
def test_an_arrival_ends_what_a_device_has_computed_ahead(
    tmp_path: Path, architecture: str
) -> None:
    """While nothing waits the device is a step ahead; no state may keep the step that is dropped."""
    path = write_model(tmp_path / "tiny.gguf", architecture, hidden=32, ff=64, num_heads=2)
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    with LLM(path, device="soft", options=INVARIANT) as llm:
        (alone,) = llm.generate("Hello", params)
        stream = llm.stream("Hello", params)
        for number, _ in enumerate(stream.deltas()):
            if number % 8 == 4:
                llm.generate("x", SamplingParams(max_tokens=1))
            if number % 8 == 7:
                llm.logits([5, 6, 7])
        assert stream.output.token_ids == alone.token_ids


def test_an_answer_is_found_by_the_next_turn(tiny: Path) -> None:
    """But in batch_invariant mode only what a prompt would have computed in the same way."""
    for options, found in ((Options(), 128), (INVARIANT, 64)):
        with LLM(tiny, device="cpu", options=options) as llm:
            prompt = list(range(3, 73))
            params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
            (answer,) = llm.generate([prompt], params)
            (turn,) = llm.generate([[*prompt, *answer.token_ids, 7]], params)
            assert turn.num_cached_tokens == found


def test_who_arrives_when(tiny: Path) -> None:
    with LLM(tiny, device="cpu") as llm:
        streams = llm.submit_all(["a", "b", "c"], GREEDY, [0, 3])
        late = llm.submit_all(["d"], GREEDY, [1000])  # nothing else is left then: it is not waited
        outputs = [stream.finish() for stream in (*streams, *late)]
        assert all(len(output.token_ids) == 12 for output in outputs)
        admitted = {id: step for step, kind, id, _ in llm.events() if kind == "admit"}
        first, second, third, _ = (output.request_id for output in outputs)
        assert admitted[first] == admitted[third] == admitted[second] - 3


def test_snapshots_tell_who_runs_and_waits(endless: Path) -> None:
    with LLM(endless, device="cpu", max_running=1) as llm:
        assert llm.snapshot()["step"] == 0
        first, second = llm.submit_all(["a" * 20, "bb"], ENDLESS)
        while (now := llm.snapshot())["rows"] != 1:  # until it decodes
            next(first.deltas())
        (running,) = now["running"]
        assert running["id"] == first.request_id
        assert running["phase"] == "decode"
        assert running["prompt_tokens"] == 20
        assert running["rows"] == 1
        assert running["computed_tokens"] == 20 + running["generated_tokens"] - 1
        assert now["waiting"] == [
            {"id": second.request_id, "prompt_tokens": 2, "preempted": False}
        ]
        held = {block for block, state in enumerate(now["blocks"]) if state["refs"]}
        assert held == set(running["blocks"])


def test_a_full_queue_says_when_to_come_back(endless: Path) -> None:
    with LLM(endless, device="cpu", max_running=1, max_queue=1) as llm:
        running, waiting = (llm.submit("a", ENDLESS) for _ in range(2))
        with pytest.raises(QueueFull, match="2 requests run or wait already") as caught:
            llm.submit("a", ENDLESS)
        assert caught.value.retry_after >= 1
        waiting.abort()
        waiting.wait()
        llm.submit("a", ENDLESS).abort()
        running.abort()
        running.wait()
        # More prompts than the queue takes: they come one after the other.
        assert len(llm.generate(["a"] * 5, GREEDY)) == 5
        assert llm.snapshot()["totals"]["queue_full"] >= 1


def test_an_aborted_request_frees_what_it_held(endless: Path) -> None:
    with LLM(endless, device="cpu") as llm:
        stream = llm.stream("Hello", ENDLESS)
        next(iter(stream))
        stream.abort()
        assert stream.finish().finish_reason == "abort"
        assert all(block["refs"] == 0 for block in llm.snapshot()["blocks"])
        abandoned = llm.stream("Hello", ENDLESS)
        ended = abandoned._inbox.ended
        del abandoned
        gc.collect()
        assert ended.wait(GUARD_SECONDS)
        assert llm.snapshot()["totals"]["aborted"] == 2


def test_closing_ends_what_runs(endless: Path) -> None:
    llm = LLM(endless, device="cpu")
    stream = llm.stream("Hello", ENDLESS)
    next(iter(stream))
    llm.close()
    llm.close()
    assert stream.finish().finish_reason == "abort"
    assert not llm._worker.is_alive
    with pytest.raises(TinyrvllmError, match="this LLM is closed"):
        llm.generate("Hello")


def test_an_llm_that_nobody_holds_is_closed(endless: Path) -> None:
    llm = LLM(endless, device="cpu")
    llm.generate("Hello", GREEDY)
    thread = llm._worker._thread
    assert thread is not None
    del llm
    gc.collect()
    thread.join(GUARD_SECONDS)
    assert not thread.is_alive()


def test_ctrl_c_in_generate_ends_its_requests(endless: Path) -> None:
    with LLM(endless, device="cpu") as llm:
        def interrupt() -> None:
            while not llm.events():
                pass
            _thread.interrupt_main()

        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            threading.Thread(target=interrupt).start()
            with pytest.raises(KeyboardInterrupt):
                llm.generate(["a", "b"], ENDLESS)
        finally:
            signal.signal(signal.SIGINT, before)
        assert texts(llm, ["Hello"], GREEDY)  # after which the others are gone
        assert llm.snapshot()["running"] == []
        assert llm.snapshot()["totals"]["aborted"] == 2


FORKING = """
import os, sys
from tinyrvllm import LLM, SamplingParams, TinyrvllmError

llm = LLM(sys.argv[1], device="cpu")
params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
text = llm.generate("Hello", params)[0].text
child = os.fork()
if child == 0:
    try:
        llm.generate("Hello", params)
    except TinyrvllmError as error:
        assert "was forked from one with an LLM" in str(error)
        sys.exit(0)
    sys.exit("no error")
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert llm.generate("Hello", params)[0].text == text
sys.exit(status)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_forked_child_is_told_what_is_wrong(tiny: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKING, str(tiny)]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=GUARD_SECONDS
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("device", "temperature"), [("cpu", 0), ("cpu", 1), ("soft", 0)])
def test_a_nan_fails_its_own_request_only(tmp_path: Path, device: str, temperature: float) -> None:
    rng = np.random.default_rng(0)
    embedding, output = rng.normal(0, 0.1, (267, 64)), rng.normal(0, 0.1, (267, 64))
    embedding[42], output[42] = np.nan, 0  # its logit is 0, far from the likeliest 20
    tensors = {"token_embd.weight": embedding, "output.weight": output}
    path = write_model(tmp_path / "bad.gguf", tied=False, tensors=tensors)
    params = SamplingParams(
        temperature=temperature, top_k=20, seed=1, max_tokens=6, ignore_eos=True
    )
    with LLM(path, device=device, options=INVARIANT) as llm:
        good, bad = [5, 6, 7] * 8, [5, 6, 42] * 8
        (alone,) = llm.generate([good], params)
        for _ in range(2):
            with pytest.raises(RequestsFailed, match="1 of 2 requests failed: NaN among") as caught:
                llm.generate([bad, good], params)
            failed, fine = caught.value.outputs
            assert failed.finish_reason == "error"
            assert failed.num_cached_tokens == 0
            assert fine.token_ids == alone.token_ids
        with pytest.raises(TinyrvllmError, match="NaN among the logits"):
            llm.stream(bad, params).finish()
        llm.check()


def test_a_step_that_raises_fails_its_requests_and_no_others(
    tiny: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with LLM(tiny, device="cpu") as llm:
        expected = texts(llm, ["Hello"], GREEDY)
        whole_run, broken = llm._runner.run, [True]

        def run(batch: object) -> np.ndarray:
            if broken:
                broken.clear()
                raise RuntimeError("the device is gone")
            return whole_run(batch)  # type: ignore[arg-type]

        llm._runner.run = run  # type: ignore[method-assign]
        with pytest.raises(TinyrvllmError, match="the device is gone"):
            llm.generate("Hello", GREEDY)
        assert "RuntimeError: the device is gone" in capfd.readouterr().err
        assert texts(llm, ["Hello"], GREEDY) == expected
        llm.check()


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"block_size": 0}, "block_size must be at least 1"),
        ({"max_running": 0}, "max_running must be at least 1"),
        ({"max_running": 8, "token_budget": 7}, r"token_budget must be at least 8 \(max_running\)"),
        ({"context_length": 100, "num_blocks": 4}, "4 blocks of 16 hold 64"),
    ],
)
def test_sizes_out_of_range(tiny: Path, numbers: dict[str, int], message: str) -> None:
    with pytest.raises(TinyrvllmError, match=message):
        LLM(tiny, device="cpu", **numbers)  # type: ignore[arg-type]


def test_requests_that_cannot_be(llm: LLM) -> None:
    with pytest.raises(TinyrvllmError, match="the prompt is empty"):
        llm.submit([])
    with pytest.raises(TinyrvllmError, match="logit_bias: token ids must be from 0 to 266"):
        llm.submit("Hello", SamplingParams(logit_bias={9999: 1.0}))
    stream = llm.submit("Hello", SamplingParams(max_tokens=400, ignore_eos=True), request_id="x")
    with pytest.raises(TinyrvllmError, match="a request 'x' runs already"):
        llm.submit("Hello", request_id="x")
    stream.abort()
    stream.wait()
    with LLM(llm.model, device="cpu", num_blocks=4) as small:
        assert small.context_length == 64
        with pytest.raises(TinyrvllmError, match="the prompt has 65 tokens, the context 64"):
            small.submit([5] * 65)


def test_logits_while_others_run(tiny: Path) -> None:
    ids = list(range(3, 63))
    with LLM(tiny, device="cpu", num_blocks=8, options=INVARIANT) as llm:
        expected = llm.logits(ids, [59])
        params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
        (alone,) = llm.generate("Hello", params)
        stream = llm.stream("Hello", params)
        next(stream.deltas())
        np.testing.assert_allclose(llm.logits(ids, [59]), expected, rtol=1e-4)
        assert stream.finish().token_ids == alone.token_ids
        llm.check()
