"""The command line, as a user or a script meets it."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.tiny_models import write_model
from tinyrvllm import LLM, SamplingParams, TinyrvllmError
from tinyrvllm.generate import main
from tinyrvllm.mtl.library import SHADERS

# The command line, even where this process ignores SIGINT, as a shell's background jobs do.
HEARS_SIGINT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from tinyrvllm.generate import main
sys.exit(main())
"""
REFERENCE = Path(__file__).parent / "reference"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("models") / "tiny.gguf"))


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], tiny: str) -> Callable[..., tuple[int, str, str]]:
    """Runs the command line on the tiny model: (exit status, standard output, standard error)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(["--model", tiny, "--device", "cpu", *arguments])
        return status, *capfd.readouterr()

    return call


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tinyrvllm.generate", "--device", "cpu", *arguments]


def test_greedy_text_is_what_the_api_gives(run: Callable, tiny: str) -> None:
    status, out, _ = run("--prompt", "Hello", "-n", "12", "--temp", "0")
    params = SamplingParams(temperature=0, max_tokens=12)
    expected = LLM(tiny, device="cpu").generate("Hello", params)[0].text
    assert (status, out) == (0, expected + "\n")


def test_same_seed_same_text(run: Callable) -> None:
    arguments = ("--prompt", "Hello", "-n", "20", "--temp", "1.5", "--json")
    first, second, other = (
        run(*arguments, "--seed", seed)[1] for seed in ("5", "5", "6")
    )
    assert json.loads(first)["token_ids"] == json.loads(second)["token_ids"]
    assert json.loads(first)["token_ids"] != json.loads(other)["token_ids"]


def test_json_is_one_object_per_prompt(run: Callable) -> None:
    status, out, _ = run("--prompt", "one", "--prompt", "two", "-n", "3", "--json", "--ignore-eos")
    answers = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert [answer["prompt"] for answer in answers] == ["one", "two"]
    assert all(answer["finish_reason"] == "length" for answer in answers)
    assert all(len(answer["token_ids"]) == 3 for answer in answers)


def test_several_prompts_are_headed(run: Callable) -> None:
    _, out, _ = run("--prompt", "one", "--prompt", "two\nlines", "-n", "2")
    assert re.search(r"^==> one <==\n", out)
    assert "\n==> two <==\n" in out


def test_prompts_from_a_file_and_standard_input(tiny: str, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_bytes("café\n".encode())
    done = subprocess.run(
        command("--model", tiny, "--prompt", "-", "--file", str(tmp_path / "prompt.txt"), "--json"),
        input=b"from \xff stdin\n", capture_output=True, check=True,
    )
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert first["prompt"] == "from ? stdin"
    assert second["prompt"] == "café"


def test_a_stop_string_ends_the_text_and_is_not_shown(run: Callable) -> None:
    arguments = ("--prompt", "Hello", "-n", "40", "--temp", "0", "--ignore-eos")
    whole = run(*arguments)[1].rstrip("\n")
    stop = whole[10:13]
    status, out, _ = run(*arguments, "--stop", stop)
    assert status == 0
    assert out == whole[: whole.index(stop)] + "\n"


def test_chat_uses_the_template(run: Callable) -> None:
    _, out, _ = run("--chat", "--system", "Be brief", "--prompt", "Hi", "-n", "2", "--json")
    ids = json.loads(out)["prompt_token_ids"]
    assert ids.count(1) == 3  # <|im_start|> of system, user and assistant
    assert ids.count(2) == 2  # <|im_end|>


def test_a_conversation_on_standard_input(tiny: str) -> None:
    done = subprocess.run(
        command("--model", tiny, "--chat", "--json", "-n", "4", "--seed", "1"),
        input="Hello\n\nAnd now?\n", capture_output=True, text=True, check=True,
    )
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert len(second["prompt_token_ids"]) > len(first["prompt_token_ids"])
    assert second["prompt_token_ids"].count(1) == 4  # user, assistant, user, assistant


def test_debug_tells_tokens_and_timings(run: Callable) -> None:
    _, _, err = run("--prompt", "Hello", "-n", "4", "--debug", "--ignore-eos")
    for wanted in (r"loaded tiny\.gguf in", r"generated tokens  \[", r"prefill +\d+ tokens", "tok/s"):
        assert re.search(wanted, err), wanted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to continue"),
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "x" * 600], "the prompt has 600 tokens, the context 512"),
        (["--prompt", "hello hello", "-c", "4"], "the context 4"),
        (["--prompt", "x", "-c", "100000"], "supports 1 to 512"),
        (["--prompt", "x", "--temp", "-1"], "temperature must be"),
        (["--prompt", "x", "-n", "0"], "max_tokens must be"),
        (["--prompt", "x", "--model", "no-such-model"], "no model 'no-such-model'"),
        (["--prompt", "x", "--device", "gpu"], "no device 'gpu'"),
        (["--prompt", "x", "--system", "y"], "add --chat"),
        (["--file", "no-such-file"], "cannot read the prompt no-such-file"),
        (["--prompt", "x", "-hf", "user/repo"], "expected one of them"),
        (["--prompt", "x", "--model", "", "-hf", "nonsense"], "expected user/repo"),
        (["--prompt", "x", "--no-fuse"], "device 'cpu' is numpy and has no kernels"),
        (["--prompt", "x", "--kv-type", "f32"], "device 'cpu' is numpy and has no kernels"),
        (["--prompt", "x", "--indirect"], "device 'cpu' is numpy and has no kernels"),
        (["--prompt", "x", "--kernel", "rmsnorm"], "--kernel: expected NAME=FILE"),
        (["--prompt", "x", "--kernel", "rmsnorm=no.metal"], "--kernel: expected NAME=FILE"),
    ],
)
def test_mistakes_are_one_line_and_status_2(
    run: Callable, arguments: list[str], message: str
) -> None:
    status, out, err = run(*arguments)
    assert status == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.skipif(sys.platform == "darwin", reason="this machine may have Apple's Metal")
def test_a_device_that_is_not_here_is_an_error(run: Callable) -> None:
    status, _, err = run("--prompt", "x", "--metal")
    assert status == 2
    assert "expected macOS" in err


def test_auto_says_what_it_chose(tiny: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", tiny, "--prompt", "x", "-n", "1"]) == 0
    assert capfd.readouterr().err.startswith("device: ")


def test_a_damaged_file_is_status_2(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 40)
    assert main(["--model", str(bad), "--prompt", "x"]) == 2
    assert capfd.readouterr().err.startswith("error: bad.gguf")


def test_a_base_model_cannot_chat(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    base = write_model(tmp_path / "base.gguf", keys={"tokenizer.chat_template": None})
    assert main(["--model", str(base), "--device", "cpu", "--chat", "--prompt", "x"]) == 2
    assert "template" in capfd.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for a child process")
def test_ctrl_c_keeps_what_was_generated(tmp_path: Path) -> None:
    endless = str(write_model(tmp_path / "endless.gguf", keys={"{arch}.context_length": 1 << 20}))
    arguments = ("--prompt", "Hello", "-n", "1000000", "--ignore-eos", "--temp", "0")
    process = subprocess.Popen(
        [sys.executable, "-c", HEARS_SIGINT, "--device", "cpu", "--model", endless, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
    )
    assert process.stdout is not None
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == b"\n"
    text = (first + rest).decode().removesuffix("\n")
    params = SamplingParams(temperature=0, max_tokens=1_000_000, ignore_eos=True)
    again = ""
    for piece in LLM(endless, device="cpu").stream("Hello", params):
        again += piece
        if len(again) >= len(text):
            break
    assert again.startswith(text)


def test_a_closed_pipe_ends_quietly(tiny: str) -> None:
    process = subprocess.Popen(
        command("--model", tiny, "--prompt", "Hello", "-n", "400", "--ignore-eos", "--seed", "1"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=60) == 0
    assert err == b""


# ---- on a device


def test_ways_to_compute_give_one_text(run: Callable) -> None:
    arguments = ("--prompt", "Hello", "-n", "8", "--temp", "0", "--ignore-eos")
    _, expected, _ = run(*arguments)
    for flags in (["--indirect"], ["--no-fuse"], ["--batch-invariant", "--kv-type", "f32"]):
        assert run(*arguments, "--device", "soft", *flags) == (0, expected, "")


def test_debug_tells_what_a_step_costs(run: Callable) -> None:
    """A llama of two layers: 8 dispatches and 6 phases each, and 4 of both outside."""
    arguments = ("--prompt", "Hello", "-n", "4", "--temp", "0", "--ignore-eos")
    _, _, err = run(*arguments, "--device", "soft", "--debug")
    assert "last step         20 dispatches in 16 phases" in err
    assert "0 by the host, 0 allocations" in err
    # Keys and values of 7 tokens in 2 layers: 2 heads of 16 halves each.
    assert re.search(r"bytes read        \d\d\d,\d+ of weights, 1,792 of KV cache", err)
    assert re.search(r"peak memory +\d+ MB \(an empty process: \d+ MB\)", err)


@pytest.mark.parametrize(
    ("change", "verdict"),
    [(("fma(small, small, squares)", "small * small + squares"), "tokens equal"),
     (("* weight[i]", "* -weight[i]"), "tokens DIFFERENT")],
)  # fmt: skip
def test_a_reader_s_kernel_in_the_engine(
    run: Callable, tmp_path: Path, change: tuple[str, str], verdict: str
) -> None:
    """Our file with one expression changed; common.h is found among our shaders."""
    ours = (SHADERS / "reduce.metal").read_text()
    assert change[0] in ours
    mine = tmp_path / "mine.metal"
    mine.write_text(ours.replace(*change))
    arguments = ("--prompt", "Hello", "-n", "6", "--temp", "0", "--ignore-eos", "--no-fuse")
    status, _, err = run(*arguments, "--device", "soft", "--kernel", f"rmsnorm={mine}")
    assert status == 0
    assert err.startswith(f"kernel rmsnorm: {verdict}, checksum ")
    assert re.search(r"; 30 dispatches in 6 steps, which took [\d.]+ ms .* \(ours [\d.]+\)", err)
    assert re.search(r"the median step \d+ us \(ours \d+\)", err)


def test_a_kernel_that_does_not_run_is_an_error(run: Callable, tmp_path: Path) -> None:
    mine = tmp_path / "mine.metal"
    mine.write_text((SHADERS / "reduce.metal").read_text())
    arguments = ("--prompt", "Hello", "-n", "2", "--temp", "0", "--device", "soft")
    status, _, err = run(*arguments, "--kernel", f"softmax={mine}")
    assert status == 2
    assert "no step ran the kernel 'softmax'" in err
    assert "matvec" in err


def test_a_model_that_overflows_is_one_line(run: Callable, tmp_path: Path) -> None:
    bad = {"output_norm.weight": np.full(64, np.nan)}
    path = write_model(tmp_path / "bad.gguf", tensors=bad)
    for device in ("cpu", "soft"):
        arguments = ("--model", str(path), "--prompt", "x", "--temp", "0", "--device", device)
        status, _, err = run(*arguments)
        assert status == 2
        assert err.startswith("error: NaN among the logits")


def test_context_end_is_a_length_finish(tiny: str) -> None:
    llm = LLM(tiny, device="cpu", context_length=16)
    output = llm.generate([[5] * 14], SamplingParams(max_tokens=50, ignore_eos=True, seed=0))[0]
    assert output.finish_reason == "length"
    # Tokens 15 and 16 fill the context; the last one sampled is never fed back.
    assert len(output.token_ids) == 3


def test_minus_one_is_all_that_the_context_holds(run: Callable[..., tuple[int, str, str]]) -> None:
    status, out, _ = run("--prompt", "hello", "-c", "16", "--ignore-eos", "-n", "-1", "--json")
    assert status == 0
    answer = json.loads(out)
    assert len(answer["prompt_token_ids"]) + len(answer["token_ids"]) == 17


def test_token_ids_out_of_range(tiny: str) -> None:
    with pytest.raises(TinyrvllmError, match="token ids must be from 0 to"):
        LLM(tiny, device="cpu").logits([10**6])


def test_logits_of_some_rows_equal_those_of_all(tiny: str) -> None:
    llm = LLM(tiny, device="cpu")
    ids = list(range(3, 50)) * 20
    ids = ids[:512]
    everything = llm.logits(ids)
    assert everything.shape == (512, llm.model.config.vocab_size)
    # BLAS adds up in another order for another number of rows.
    np.testing.assert_allclose(llm.logits(ids, [0, 300, 511]), everything[[0, 300, 511]], rtol=1e-4)


@pytest.mark.real_model
@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("smollm2-135m", "smollm2-135m-q4_1"),
        ("gemma-3-270m", "gemma3-270m-q4_k_m"),
        ("qwen2.5-coder-0.5b", "qwen2.5-coder-0.5b-q4_k_m"),
    ],
)
def test_real_models_print_the_reference_continuation(
    real_model: Callable[[str], Path],
    capfd: pytest.CaptureFixture[str],
    name: str,
    reference: str,
) -> None:
    """Sixteen greedy tokens of the float32 reference, from the command line of the README."""
    file = json.loads((REFERENCE / f"{reference}.transformers-f32.json").read_text())
    expected = next(prompt for prompt in file["prompts"] if prompt["name"] == "capital")
    arguments = ["--prompt", "The capital of France is", "-n", "16", "--temperature", "0"]
    assert main(["--model", str(real_model(name)), "--device", "cpu", *arguments, "--json"]) == 0
    answer = json.loads(capfd.readouterr().out)
    assert answer["token_ids"] == expected["greedy64_ids_ignoring_eog"][:16]
