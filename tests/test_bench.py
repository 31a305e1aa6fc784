"""The commands of `python -m tinyrvllm.bench`, on a tiny model: what they say, not how fast."""

import json
import re
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_models import write_model
from tinyrvllm import bench
from tinyrvllm.benches import common, sweep, transformers
from tinyrvllm.benches.greedy import Greedy, fnv1a, prompt, prompts
from tinyrvllm.benches.predict import CHIPS
from tinyrvllm.benches.served import serve
from tinyrvllm.benches.sweep import Row, add_speed_ups
from tinyrvllm.benches.trace import trace
from tinyrvllm.engine.block_pool import BlockPool
from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.model import load


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("bench") / "tiny.gguf", "llama")


def output(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a bench command prints; it must succeed."""
    assert bench.main(list(map(str, arguments))) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", bench.COMMANDS)
def test_every_command_teaches(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        bench.main([command, "--help"])
    assert stopped.value.code == 0
    help_text = capsys.readouterr().out
    assert "--json" in help_text
    if command != "kernels":
        assert f"python -m tinyrvllm.bench {command}" in help_text.split("examples:")[1]


def test_help_is_quick_and_an_unknown_command_is_one_line() -> None:
    script = "import sys; from tinyrvllm.bench import main; main(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"numpy", "cffi", "gguf"} & set(done.stdout.splitlines()[-1].split())
    command = [sys.executable, "-m", "tinyrvllm.bench", "swep"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert re.fullmatch(r"error: no command 'swep': choose one of sweep, .*\n", done.stderr)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sweep", "--tokens", "500"], "this model's context is 512"),
        (["trace", "--arrivals", "0,x"], "expected 1 to 64 step numbers"),
        (["peers", "--llama-bin", "nowhere"], "build llama.cpp"),
        (["compare", "--device", "gpu"], "choose one of"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main([*arguments, "--model", str(tiny)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1


def test_fnv1a_is_the_published_function() -> None:
    """Two of the authors' test vectors: the empty string and "foob"."""
    assert fnv1a([]) == "cbf29ce484222325"
    assert fnv1a([[int.from_bytes(b"foob", "little")]]) == "dd120e790c2512af"


def test_sweep_is_the_same_alone_and_between_others(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = ("--model", tiny, "--device", "cpu", "--prompt-tokens", 7, "--tokens", 4, "--runs", 2)
    both = json.loads(output(capsys, "sweep", *work, "--batch", 2, "--batch", 5, "--json"))
    alone = json.loads(output(capsys, "sweep", *work, "--batch", 5, "--json"))
    assert [row["batch"] for row in both["rows"]] == [2, 5]
    assert both["rows"][1]["checksum"] == alone["rows"][0]["checksum"]
    other = json.loads(output(capsys, "sweep", *work, "--batch", 5, "--seed", 1, "--json"))
    assert other["rows"][0]["checksum"] != alone["rows"][0]["checksum"]
    table = output(capsys, "sweep", *work, "--batch", 5)
    assert alone["rows"][0]["checksum"] in table
    assert len({len(line) for line in table.splitlines() if line.startswith("|")}) == 1


def test_sweep_shows_what_it_had_before_ctrl_c(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = ["--model", str(tiny), "--device", "cpu", "--prompt-tokens", "3", "--tokens", "2",
            "--runs", "1", "--batch", "1", "--batch", "2", "--json"]  # fmt: skip

    def interrupted(*work: Any) -> Any:
        if len(work[3]) == 2:  # prompts
            raise KeyboardInterrupt
        return serve(*work)

    monkeypatch.setattr(sweep, "serve", interrupted)
    assert bench.main(["sweep", *work]) == 130
    assert [row["batch"] for row in json.loads(capsys.readouterr().out)["rows"]] == [1]


def test_sweep_rates_and_speed_ups(tiny: Path) -> None:
    run = Greedy(load(tiny), "cpu", 3, 20).generate([[5] * 9, [6] * 9, [7] * 9], 6)
    assert [len(line) for line in run.tokens] == [6, 6, 6]
    assert (len(run.prefill_seconds), len(run.step_seconds)) == (3, 5)
    run.prefill_seconds, run.step_seconds = [0.1, 0.3, 0.2], [0.08] * 5
    assert run.tokens_per_second == pytest.approx(18)
    assert run.ms_per_step == pytest.approx(80)
    assert run.first_token_ms == pytest.approx(200)
    assert run.prefill_tokens_per_second == pytest.approx(45)
    rows = [
        Row(device, 4, (rate, 0.0), *[(1.0, 0.0)] * 3, "", 1.0, 0.5, 0.0, None, None)
        for device, rate in (("soft", 30.0), ("cpu", 20.0))
    ]
    add_speed_ups(rows)
    assert [row.speed_up for row in rows] == [1.5, 1.0]


def test_sweep_serves_the_same_prompts(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Six prompts of 40 tokens, of which 32 are the same: two blocks that are computed once."""
    work = ("--model", tiny, "--device", "cpu", "--prompt-tokens", 40, "--tokens", 5, "--runs", 1)
    flags = (*work, "--batch", 3, "--batch", 6, "--json")
    shared = json.loads(output(capsys, "sweep", *flags, "--shared-prefix", 32))["rows"]
    plain = json.loads(output(capsys, "sweep", *flags))["rows"]
    assert [row["prefix_hits"] for row in plain] == [0, 0]
    assert [row["prefix_hits"] for row in shared] == pytest.approx([64 / 120, 160 / 240])
    # Of 6 times 4 blocks 3 for each; those of the beginning are held once.
    assert [row["pool_use"] for row in plain] == [9 / 24, 18 / 24]
    assert [row["pool_use"] for row in shared] == [5 / 24, 8 / 24]
    assert all(row["served_tokens_per_second"] > 0 for row in plain + shared)
    assert bench.main(["sweep", *map(str, work), "--shared-prefix", "41"]) == 2
    assert "expected 0 to 40" in capsys.readouterr().err


def test_the_engine_writes_what_the_plain_loop_writes(tiny: Path) -> None:
    model = load(tiny)
    greedy = Greedy(model, "cpu", 3, 40)
    texts = prompts(0, 3, 20, greedy.vocab_size, shared=16)
    pool = BlockPool(greedy.num_blocks, 16)
    first = serve(model, greedy.runner, pool, texts, 8)
    again = serve(model, greedy.runner, pool, texts, 8)  # of each prompt one block is there
    assert first.tokens == again.tokens == greedy.generate(texts, 8).tokens
    assert again.prefix_hits == pytest.approx(16 / 20)


def test_sweep_draws(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="the plots extra is not installed")
    path = tmp_path / "sweep.png"
    output(capsys, "sweep", "--model", tiny, "--device", "cpu", "--prompt-tokens", 3, "--tokens", 2,
           "--runs", 1, "--batch", 1, "--batch", 2, "--plot", path)  # fmt: skip
    assert path.read_bytes().startswith(b"\x89PNG")


def test_batched_greedy_tokens_are_those_of_one_at_a_time(tiny: Path) -> None:
    model = load(tiny)
    greedy = Greedy(model, "cpu", 3, 600)
    prompts = [prompt(0, i, 530, greedy.vocab_size) for i in range(2)]  # two chunks each
    found = greedy.generate(prompts, 3).tokens
    for ids, tokens in zip(prompts, found, strict=True):
        for token in tokens:
            assert token == greedy.logits(ids, len(ids) - 1)[0].argmax()
            ids.append(token)


def test_trace(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--model", tiny, "--device", "cpu", "--prompt-tokens", 5, "--tokens", 3)
    lines = output(capsys, "trace", *arguments, "--arrivals", "1,2,9").splitlines()
    *steps, last = map(json.loads, lines)
    assert [(line["step"], line["running"], line["tokens"]) for line in steps] == [
        (1, 1, 5), (2, 2, 6), (3, 2, 2), (4, 1, 1), (9, 1, 5), (10, 1, 1), (11, 1, 1),
    ]  # fmt: skip
    assert [line["blocks"] for line in steps] == [1, 2, 1, 0, 1, 1, 0]  # after each step
    model = load(tiny)
    greedy = Greedy(model, "cpu", 3, 8)
    together = greedy.generate([prompt(0, i, 5, greedy.vocab_size) for i in range(3)], 3)
    assert last == {"checksum": fnv1a(together.tokens)}
    # The pool's old contents do not show.
    assert list(trace(model, greedy, [1, 2, 9], 5, 3, 0))[-1] == last


def test_host_counts_dispatches_and_prints_the_goals(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(output(capsys, "host", "--layers", 3, "--steps", 5, "--json"))
    assert [(row["replay"], row["busy_thread"]) for row in rows] == [
        ("direct", False), ("direct", True), ("indirect", False), ("indirect", True),
    ]  # fmt: skip
    assert {row["goal_ms"] for row in rows} == {0.4, 0.1}
    more = json.loads(output(capsys, "host", "--layers", 4, "--steps", 5, "--json"))
    assert 1 <= more[0]["dispatches"] - rows[0]["dispatches"] <= 9  # of a layer
    assert "0.4" in output(capsys, "host", "--layers", 1, "--steps", 2)


def test_predict_follows_bandwidth_and_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    def rows(shape: str, *batches: int) -> list[dict[str, float]]:
        flags = [flag for batch in batches for flag in ("--batch", batch)]
        chips = ("--chip", "m1", "--chip", "m4max")
        return json.loads(output(capsys, "predict", *chips, "--shape", shape, *flags, "--json"))

    slow, slow8, fast, _ = rows("smollm2-135m:q8_0", 1, 8)
    assert fast["ms"] < slow["ms"] < slow8["ms"]
    assert slow["low_ms"] < slow["ms"] < slow["high_ms"]
    # The weights are read once each: 34 bytes for 32 of 134,515,008 values, less the embedding's
    # rows that are looked up and not multiplied (none: it is the output matrix too).
    assert 1.0 <= slow["megabytes"] / (134_515_008 / 32 * 34 / 1e6) < 1.1
    assert slow["gigaflops"] == pytest.approx(2 * 134_515_008 / 1e9, rel=0.1)
    assert rows("smollm2-135m:f16", 1)[0]["megabytes"] > 1.8 * slow["megabytes"]
    # Never faster than the published bandwidth allows.
    limit = slow["megabytes"] / CHIPS["m1"].gigabytes_per_second
    assert slow["low_ms"] > limit


FAKE_LLAMA_CPP = """\
#!{python}
import json, sys
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if sys.argv[0].endswith("llama-bench"):
    assert flags["-p"] == "6" and flags["-t"] == "1"
    print(json.dumps({{"avg_ts": 1e9}}))
else:
    print("a line that is no JSON")
    for size in flags["-npl"].split(","):
        print(json.dumps({{"pl": int(size), "speed_tg": 1e9}}))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows runs no scripts by their first line")
def test_peers_prints_ratios(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("llama-bench", "llama-batched-bench"):
        script = tmp_path / name
        script.write_text(FAKE_LLAMA_CPP.format(python=sys.executable))
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    command = [sys.executable, "-m", "tinyrvllm.bench", "peers", "--llama-bin", str(tmp_path),
               "--model", str(tiny), "--prompt-tokens", "6", "--tokens", "2", "--batch", "1",
               "--batch", "3", "--threads", "1", "--rounds", "2", "--json"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout)
    assert [row["work"] for row in rows] == ["prefill 6", "decode, batch 1", "decode, batch 3"]
    for row in rows:
        assert row["llama_cpp"] == 1e9
        assert 0 < row["ratio"] < 1
        assert (row["of_memory"] is None) == row["work"].startswith("prefill")
        assert row["of_memory"] is None or 0 < row["of_memory"] < 1


FAKE_TRANSFORMERS = """
import json, sys
print("a line that is no JSON", flush=True)
for line in sys.stdin:
    kind, batch = line.split()
    if batch == "3":
        sys.exit("RuntimeError: out of memory")
    ms = {"eager": 1e9, "compiled": 5e8}[kind]
    print(json.dumps({"ms": ms, "tokens": [[7, 7, 7, 7]] * int(batch)}), flush=True)
"""


def test_transformers_prints_ratios(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(transformers, "NEEDED", ("json",))
    monkeypatch.setattr(transformers, "REST", 0)
    fake = [sys.executable, "-c", FAKE_TRANSFORMERS]
    monkeypatch.setattr(transformers, "peer_command", lambda *_: fake)
    work = ("--model", tiny, "--device", "cpu", "--prompt-tokens", 6, "--tokens", 4, "--rounds", 1)
    rows = json.loads(output(capsys, "transformers", *work, "--batch", 1, "--batch", 2, "--json"))
    assert [row["batch"] for row in rows] == [1, 2]
    for row in rows:
        assert (row["eager_ms"], row["compiled_ms"]) == (1e9, 5e8)
        assert row["ratio"] == pytest.approx(5e8 / row["ours_ms"])
        assert 0 <= row["same"] <= 4
    assert " compiled | " in output(capsys, "transformers", *work, "--batch", 1)
    assert bench.main([*map(str, ("transformers", *work)), "--batch", "3"]) == 2
    error = capsys.readouterr().err
    assert error == "error: transformers ended with 1: RuntimeError: out of memory\n"
    nine = [flag for batch in range(1, 10) for flag in ("--batch", str(batch))]
    assert bench.main([*map(str, ("transformers", *work)), *nine]) == 2
    assert "expected at most 8 batch sizes, found 9" in capsys.readouterr().err
    assert bench.main([*map(str, ("transformers", *work)), "--tokens", "1"]) == 2
    assert "expected --tokens of 2 or more" in capsys.readouterr().err
    monkeypatch.setattr(transformers, "NEEDED", ("no_such_package", "json"))
    assert bench.main(["transformers", "--model", str(tiny)]) == 2
    error = capsys.readouterr().err
    assert error == "error: no package no_such_package here: pip install no_such_package json\n"


def test_what_a_peer_says_before_it_is_asked() -> None:
    """Nobody reads the question, and a hint follows the error."""
    says = """import sys; sys.exit("ImportError: no gguf\\nTry: pip install gguf")"""
    with (
        pytest.raises(TinyrvllmError, match="ended with 1: ImportError: no gguf$"),
        transformers.peer([sys.executable, "-c", says]) as ask,
    ):
        time.sleep(1)  # it has ended by then
        ask("eager", 1)


def test_equal_beginnings() -> None:
    assert common.equal_beginning([1, 2, 3], [1, 2, 3]) == 3
    assert common.equal_beginning([1, 2, 3], [1, 4, 3]) == 1
