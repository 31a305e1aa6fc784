"""python -m tinyrvllm.serve as a process: its start, its end, and its mistakes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import uvicorn

from tests.server.conftest import HANG_SECONDS
from tinyrvllm.serve import graceful_server, is_loopback, main, parser

# The command line, even where this process ignores SIGINT, as a shell's background jobs do.
HEARS_SIGINT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from tinyrvllm.serve import main
sys.exit(main())
"""
ENDLESS = {"prompt": "Hello", "max_tokens": 130_000, "ignore_eos": True, "stream": True}

needs_signals = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has no SIGTERM for a child process"
)


@contextmanager
def process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """The server on a free port, and a client of it. Killed at the end, if it still runs."""
    command = [sys.executable, "-c", HEARS_SIGINT, "--port", "0", "--device", "cpu", *arguments]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        assert server.stdout is not None
        found = re.search(r"page (http://\S+)/,", server.stdout.readline())
        assert found, server.communicate()
        with httpx.Client(base_url=found[1], timeout=HANG_SECONDS) as http:
            yield server, http
    except Exception as error:
        server.kill()
        error.add_note(f"the server said: {server.communicate()[1]!r}, status {server.returncode}")
        raise
    finally:
        server.kill()
        server.communicate()


def assert_cut_short(lines: Iterator[str]) -> None:
    *_, last, done = (line[6:] for line in lines if line.startswith("data: "))
    assert json.loads(last)["choices"][0]["finish_reason"] == "abort"
    assert done == "[DONE]"


@needs_signals
def test_sigterm_lets_the_running_finish(tiny: Path) -> None:
    asked = {"prompt": "Hello", "max_tokens": 400, "temperature": 0, "ignore_eos": True}
    with process("--model", str(tiny), "--alias", "me") as (server, http):
        assert http.get("/v1/models").json()["data"][0]["id"] == "me"
        whole = http.post("/v1/completions", json=asked).json()["choices"][0]["text"]
        with http.stream("POST", "/v1/completions", json=asked | {"stream": True}) as answer:
            lines = answer.iter_lines()
            first = next(lines)
            server.send_signal(signal.SIGTERM)
            data = [line[6:] for line in [first, *lines] if line.startswith("data: ")]
        assert data[-1] == "[DONE]"
        assert "".join(json.loads(line)["choices"][0]["text"] for line in data[:-1]) == whole
        assert server.wait(HANG_SECONDS) == 0


@needs_signals
@pytest.mark.parametrize("sig", ["SIGINT", "SIGTERM"])
def test_a_second_signal_ends_what_runs(endless: Path, sig: str) -> None:
    with process("--model", str(endless), "--num-blocks", "8192") as (server, http):
        with http.stream("POST", "/v1/completions", json=ENDLESS) as answer:
            next(lines := answer.iter_lines())
            server.send_signal(getattr(signal, sig))
            assert server.stderr is not None
            assert server.stderr.readline() == "finishing what runs; once more to end it\n"
            server.send_signal(getattr(signal, sig))
            assert_cut_short(lines)
        assert server.wait(HANG_SECONDS) == 0
        assert server.stderr.read() == "ending what runs\n"


def test_the_signal_handler_leaves_the_talking_to_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal inside a print of this thread would find it "reentrant": an error."""
    server, asked = graceful_server(uvicorn.Config(app=""), 1, lambda: None), []
    monkeypatch.setattr(server, "loop", SimpleNamespace(call_soon_threadsafe=asked.append), False)
    monkeypatch.setattr(sys, "stderr", object())  # no print gets through this
    for _ in range(2):
        server.handle_exit(signal.SIGTERM, None)
    assert asked == [server.begin_to_end, server.end_now]


@needs_signals
def test_grace_has_an_end(endless: Path) -> None:
    arguments = ("--model", str(endless), "--num-blocks", "8192", "--grace", "1")
    with process(*arguments) as (server, http):
        with http.stream("POST", "/v1/completions", json=ENDLESS) as answer:
            next(lines := answer.iter_lines())
            server.send_signal(signal.SIGTERM)
            assert_cut_short(lines)
        assert server.wait(HANG_SECONDS) == 0


def test_mistakes_are_one_line_and_status_2(
    tiny: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, message in (
            (["--port", port], f"cannot listen on 127.0.0.1, port {port}"),
            (["--port", "99999"], "cannot listen on 127.0.0.1, port 99999"),
            (["--host", "192.0.2.1"], "cannot listen on 192.0.2.1"),
            (["--port", "0", "--model", "nothing"], "no model 'nothing'"),
            (["--port", "0", "--num-blocks", "0"], "num_blocks"),
            (["--port", "0", "--ctx", "100000"], "supports 1 to 512"),
        ):
            assert main(["--device", "cpu", "--model", str(tiny), *arguments]) == 2
            error = capfd.readouterr().err
            assert message in error
            assert error.count("\n") == 1
            assert error.startswith("error: ")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["--device", "cpu"]) == 2
    assert 'pip install "tinyrvllm[serve]"' in capfd.readouterr().err


def test_help_teaches() -> None:
    text = parser().format_help()
    for wanted in (
        "--max-num-seqs", "--max-running", "--ctx", "--api-key", "--host", "--port", "--max-queue",
        "--num-blocks", "--block-size", "/v1/chat/completions", "/metrics", "curl", "Ctrl-C",
    ):  # fmt: skip
        assert wanted in text


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("a", False)],
)
def test_an_address_for_this_machine_only(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback
