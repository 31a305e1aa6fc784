"""Several prompts on one command line, and the engine's controls."""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny_models import write_model
from tinyrvllm.generate import main

PROMPTS = ("--prompt", "Hello", "--prompt", "one two three", "--prompt", "x" * 70)
LENGTH = ("-n", "24", "--ignore-eos")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("models") / "tiny.gguf"))


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], tiny: str) -> Run:
    """Runs the command line on the tiny model: (exit status, standard output, standard error)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(["--model", tiny, "--device", "cpu", *arguments])
        return status, *capfd.readouterr()

    return call


def answers(run: Run, *arguments: str) -> list[dict]:
    status, out, err = run(*PROMPTS, *LENGTH, "--batch-invariant", "--json", *arguments)
    assert (status, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize("sampling", [("--temp", "0"), ("--temp", "1", "--seed", "3")])
def test_controls_change_no_text(run: Run, sampling: tuple[str, ...]) -> None:
    expected = [answer["token_ids"] for answer in answers(run, *sampling)]
    for controls in (
        ("--max-running", "1"),
        ("--max-running", "2", "--max-queue", "0"),
        ("--block-size", "4", "--num-blocks", "25"),  # too few for all three: preempted
        ("--arrival-step", "5", "--arrival-step", "0", "--arrival-step", "9"),
        ("--token-budget", "32"),
    ):
        assert [a["token_ids"] for a in answers(run, *sampling, *controls)] == expected, controls


def test_a_trace_shows_requests_steps_and_dispatches(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    arguments = (*PROMPTS, "-n", "3", "--ignore-eos", "--temp", "0", "--trace", str(file))
    status, _, _ = run(*arguments, "--device", "soft", "--arrival-step", "0", "--arrival-step", "2")
    assert status == 0
    events = json.loads(file.read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    spans: dict[str, list[dict]] = {name: [] for name in names.values()}
    for event in events:
        if event["ph"] == "X":
            spans[names[event["pid"]]].append(event)
    # Two prompts at step 0, the third at step 2; three tokens each.
    rows = ["74 rows", "2 rows", "12 rows", "1 rows", "1 rows"]
    assert [e["name"] for e in spans["engine"]] == rows
    assert Counter(e["name"] for e in spans["requests"]) == {
        "waiting": 3, "prefill": 3, "decode": 6,
    }  # fmt: skip
    dispatched = Counter(e["name"] for e in spans["device"])
    assert dispatched["rope_and_store"] == 2 * len(spans["engine"])  # two layers
    for step in spans["engine"]:
        inside = [
            e for e in spans["device"]
            if step["ts"] <= e["ts"] and e["ts"] + e["dur"] <= step["ts"] + step["dur"]
        ]  # fmt: skip
        assert len(inside) == step["args"]["dispatches"] > 0


def test_a_trace_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    status, _, err = run("--prompt", "x", "-n", "1", "--trace", str(tmp_path / "no" / "trace.json"))
    assert status == 2
    assert "cannot write the trace" in err


def test_logprobs(run: Run) -> None:
    arguments = ("--prompt", "Hello", "-n", "3", "--ignore-eos", "--temp", "0", "--logprobs", "2")
    (answer,) = (json.loads(line) for line in run(*arguments, "--json")[1].splitlines())
    assert len(answer["logprobs"]) == 3
    for token in answer["logprobs"]:
        assert token["top"][0] == [token["token"], token["logprob"]]
        assert len(token["top"]) == 2
    _, out, err = run(*arguments)
    assert out == answer["text"] + "\n"
    assert len(re.findall(r"^ +-\d+\.\d{3}  '", err, re.MULTILINE)) == 3


def test_penalties_and_bias(run: Run) -> None:
    arguments = ("--prompt", "x" * 70, "-n", "20", "--ignore-eos", "--temp", "0", "--json")
    ids = json.loads(run(*arguments)[1])["token_ids"]
    assert len(set(ids)) < 20
    flags = ("--repetition-penalty", "1e9"), ("--logit-bias", f"{ids[0]}=-100")
    apart, biased = (json.loads(run(*arguments, *each)[1])["token_ids"] for each in flags)
    assert len(set(apart)) == 20
    assert ids[0] not in biased


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--logit-bias", "x=1"], "--logit-bias: expected a token id and a number"),
        (["--logit-bias", "99999=1"], "logit_bias: token ids must be from 0 to 266"),
        (["--presence-penalty", "9"], "presence_penalty must be from -2 to 2"),
        (["--logprobs", "21"], "logprobs must be from 0 to 20"),
        (["--num-blocks", "0"], "num_blocks must be at least 1"),
        (["--max-running", "600"], r"token_budget must be at least 600 (max_running)"),
        (["-c", "100", "--num-blocks", "4"], "4 blocks of 16 hold 64"),
        (["--arrival-step", "1", "--arrival-step", "2"], "1 prompts, but"),
        (["--model", "", "--shape", "nonsense"], "no shape 'nonsense'"),
    ],
)
def test_mistakes_are_one_line_and_status_2(run: Run, arguments: list[str], message: str) -> None:
    status, out, err = run("--prompt", "x", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err
