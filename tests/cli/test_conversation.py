"""A conversation, as a script pipes it in and as somebody at a terminal has it."""

import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tiny_models import write_model
from tinyrvllm.generate import main

GUARD_SECONDS = 300  # against hanging for ever
IN_A_TERMINAL = """
import fcntl, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C reaches this process
signal.signal(signal.SIGINT, signal.default_int_handler)
from tinyrvllm.generate import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model whose context never ends."""
    path = tmp_path_factory.mktemp("models") / "endless.gguf"
    return str(write_model(path, keys={"{arch}.context_length": 1 << 20}))


def converse(model: str, said: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A conversation of these lines."""
    command = [sys.executable, "-m", "tinyrvllm.generate", "--device", "cpu", "--model", model]
    return subprocess.run(
        [*command, "--chat", *arguments], check=False, input=said, capture_output=True, text=True,
        timeout=GUARD_SECONDS,
    )  # fmt: skip


def test_commands_of_a_conversation(endless: str, tmp_path: Path) -> None:
    file = tmp_path / "saved.json"
    said = f"Hello\nAnd now?\n/stats\n/save {file}\n/reset\nHello\n/help\n/save /no/such/folder/x\n"
    done = converse(endless, said, "-n", "4", "--temp", "0", "--json", "--system", "Be brief")
    assert done.returncode == 0
    first, second, third = (json.loads(line) for line in done.stdout.splitlines())
    assert third["token_ids"] == first["token_ids"]
    assert third["prompt_token_ids"] == first["prompt_token_ids"] != second["prompt_token_ids"]
    assert second["cached_tokens"] > 0  # the first turn is not computed again
    saved = json.loads(file.read_text(encoding="utf-8"))
    assert [message["role"] for message in saved] == ["system", *["user", "assistant"] * 2]
    assert [saved[1]["content"], saved[3]["content"]] == ["Hello", "And now?"]
    assert [saved[2]["content"], saved[4]["content"]] == [first["text"], second["text"]]
    for wanted in (
        r"answers +2 finished, 0 stopped", r"generated +8 tokens in \d+ steps",
        r"prefix cache +\d+ of \d+ prompt tokens", r"context +\d+ of 1048576 tokens",
        r"\(5 messages in .*saved\.json\)", r"\(forgotten\)", r"/reset +forget what was said",
        r"error: cannot write /no/such/folder/x: ",
    ):  # fmt: skip
        assert re.search(wanted, done.stderr), wanted


def test_a_script_that_says_too_much_fails(tmp_path: Path) -> None:
    short = write_model(tmp_path / "short.gguf", keys={"{arch}.context_length": 64})
    done = converse(str(short), "Hello\n" + "x" * 80 + "\nnever read\n", "-n", "4", "--temp", "0")
    assert done.returncode == 2
    assert "the context 64" in done.stderr
    assert done.stdout.count("\n") == 1


def test_saying_nothing_at_all(endless: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        assert main(["--model", endless, "--device", "cpu", "--chat"]) == 0


class Terminal:
    """The command line in a pseudo-terminal."""

    def __init__(self, *arguments: str) -> None:
        self.shown = ""
        self._ours, theirs = os.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", IN_A_TERMINAL, "--device", "cpu", "--chat", *arguments],
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def wait_for(self, pattern: str) -> None:
        """Until the pattern is shown; what comes up to its end is then forgotten."""
        end = time.monotonic() + GUARD_SECONDS
        while not (found := re.search(pattern, self.shown)):
            ready, _, _ = select.select([self._ours], [], [], max(0, end - time.monotonic()))
            assert ready, f"{pattern!r} is not in {self.shown[-300:]!r}"
            try:
                data = os.read(self._ours, 4096)
            except OSError:  # how Linux says that the other side has closed
                data = b""
            assert data, f"it ended before {pattern!r} came: {self.shown[-300:]!r}"
            self.shown += data.decode(errors="replace")
        self.shown = self.shown[found.end() :]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def terminal(endless: str) -> Iterator[Callable[..., Terminal]]:
    opened = []

    def open_terminal(*arguments: str) -> Terminal:
        opened.append(Terminal("--model", endless, "--temp", "0", *arguments))
        return opened[-1]

    yield open_terminal
    for each in opened:
        each.close()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
@pytest.mark.parametrize("key", ["\x1b", "\x03"], ids=["Esc", "Ctrl-C"])
def test_a_key_stops_the_answer_and_not_the_program(
    terminal: Callable[..., Terminal], key: str
) -> None:
    it = terminal("-n", "1000000", "--ignore-eos")
    it.wait_for(r"Esc or Ctrl-C stops an answer\)")
    it.wait_for("> ")
    for _ in range(2):
        it.type("Hello\n")
        it.wait_for("Hello\r\n")  # the terminal's echo
        it.wait_for("(?s)..........")  # it answers
        it.type("\x1b[A")  # an arrow key is not Esc
        it.wait_for("(?s)....................")
        it.type(key)
        it.wait_for(r"\(stopped\)")
        it.wait_for("> ")
    it.type("/stats\n")
    it.wait_for(r"answers +0 finished, 2 stopped")
    it.wait_for("> ")
    it.type("\x04")
    assert it.process.wait(GUARD_SECONDS) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
def test_a_mistake_at_a_terminal_ends_nothing(terminal: Callable[..., Terminal]) -> None:
    it = terminal("-n", "2", "--ctx", "64")
    it.wait_for("> ")
    it.type("x" * 100 + "\n")
    it.wait_for("error: the prompt has .*/reset begins anew")
    it.wait_for("> ")
    it.type("Hello\n")
    it.wait_for("Hello\r\n")
    it.wait_for("> ")
    it.type("\x04")
    assert it.process.wait(GUARD_SECONDS) == 0
