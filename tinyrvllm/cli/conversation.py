"""A conversation in the terminal: what was said, commands, and a key that stops an answer."""

import argparse
import json
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tinyrvllm.errors import TinyrvllmError

if TYPE_CHECKING:
    from tinyrvllm.engine.llm import LLM, RequestOutput, Stream
    from tinyrvllm.engine.sampler import SamplingParams

Show = Callable[["Stream"], str]  # prints an answer as it comes

COMMANDS = {
    "/reset": "forget what was said",
    "/stats": "what the engine has done",
    "/save": "write the conversation to a file: /save FILE",
    "/help": "this list",
}
POLL_SECONDS = 0.05  # between looks at the keyboard
ESCAPE = "\x1b"


class Conversation:
    """Messages so far, and the commands on them."""

    def __init__(
        self, llm: "LLM", params: "SamplingParams", args: argparse.Namespace, show: Show
    ) -> None:
        self.llm = llm
        self.params = params
        self.opening = [{"role": "system", "content": args.system}] if args.system else []
        self.messages = list(self.opening)
        self.show = show
        self.last: RequestOutput | None = None

    def run(self) -> None:
        """Reads lines until the end of standard input: Ctrl-D, or Ctrl-C at the prompt."""
        if sys.stdin.isatty():
            print(f"({', '.join(COMMANDS)}; Esc or Ctrl-C stops an answer)", file=sys.stderr)
        while (text := read_line()) is not None:
            words = text.split()
            if not words:
                continue
            if words[0] in COMMANDS:
                self.command(words[0], text.split(maxsplit=1)[1:])
            else:
                self.answer(text)

    def answer(self, text: str) -> None:
        """One turn. On a terminal a mistake is said and forgotten; in a script it ends the run."""
        try:
            stream = self.llm.chat([*self.messages, {"role": "user", "content": text}], self.params)
            self.watch(stream)
        except TinyrvllmError as error:
            if not sys.stdin.isatty():
                raise
            print(f"error: {error} (/reset begins anew)", file=sys.stderr)
            return
        self.last = stream.output
        self.messages += [
            {"role": "user", "content": text},
            {"role": "assistant", "content": stream.output.text},
        ]

    def watch(self, stream: "Stream") -> None:
        """Shows an answer until it ends, or is stopped by Esc or Ctrl-C."""
        try:
            with StopKey(stream.abort):
                self.show(stream)
        except KeyboardInterrupt:
            stream.abort()
            stream.wait()
            print("(stopped)", file=sys.stderr)
        if stream.output.finish_reason == "abort":
            print("(stopped)", file=sys.stderr)

    def command(self, name: str, arguments: list[str]) -> None:
        if name == "/reset":
            self.messages = list(self.opening)
            print("(forgotten)", file=sys.stderr)
        elif name == "/stats":
            print(stats(self.llm, self.last), file=sys.stderr)
        elif name == "/save":
            self.save(arguments[0].strip() if arguments else "conversation.json")
        else:
            for each, what in COMMANDS.items():
                print(f"{each:8} {what}", file=sys.stderr)

    def save(self, name: str) -> None:
        text = json.dumps(self.messages, ensure_ascii=False, indent=2)
        try:
            Path(name).expanduser().write_text(text + "\n", encoding="utf-8", errors="replace")
        except OSError as error:
            print(f"error: cannot write {name}: {error.strerror}", file=sys.stderr)
        else:
            print(f"({len(self.messages)} messages in {name})", file=sys.stderr)


def stats(llm: "LLM", last: "RequestOutput | None") -> str:
    """Tokens, seconds and blocks, in a few lines."""
    now = llm.snapshot()
    totals = now["totals"]
    used = sum(block["refs"] > 0 or block["cached"] for block in now["blocks"])
    lines = [
        f"answers       {totals['requests_finished']} finished, {totals['aborted']} stopped",
        f"prompts       {totals['prompt_tokens']} tokens",
        f"generated     {totals['generation_tokens']} tokens in {totals['steps']} steps",
        f"prefix cache  {totals['prefix_hits']} of {totals['prefix_queries']} prompt tokens",
        f"blocks        {used} of {now['num_blocks']} in use or cached",
    ]
    if last is not None and len(last.token_ids) > 1:
        rate = (len(last.token_ids) - 1) / (last.total_seconds - last.first_token_seconds)
        first = last.first_token_seconds
        lines.append(f"last answer   first token in {first:.3f} s, then {rate:.1f} tok/s")
        length = len(last.prompt_token_ids) + len(last.token_ids)
        lines.append(f"context       {length} of {llm.context_length} tokens")
    return "\n".join(lines)


def read_line() -> str | None:
    """What the user said; None at the end."""
    if sys.stdin.isatty():
        with suppress(ImportError):  # Windows has arrow keys and a history without it
            import readline  # noqa: F401 - gives them to input()
        try:
            return input("> ")
        except EOFError:
            print()
            return None
    line = sys.stdin.buffer.readline()
    return line.decode("utf-8", "surrogateescape").removesuffix("\n") if line else None


class StopKey:
    """While it is open, Esc calls a function. Does nothing where there is no terminal."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if sys.stdin.isatty():
            self._keyboard = _WindowsKeyboard() if sys.platform == "win32" else _Keyboard()
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        if self._thread is not None:
            self._done.set()
            self._thread.join()
            self._keyboard.close()

    def _watch(self) -> None:
        while not self._done.is_set():
            pressed = self._keyboard.read(POLL_SECONDS)
            # An arrow key sends Esc and more, perhaps a moment later.
            if pressed.endswith(ESCAPE) and not self._keyboard.read(POLL_SECONDS):
                self._stop()


class _Keyboard:
    """Keys as they are pressed, without Enter; Ctrl-C stays what it is."""

    def __init__(self) -> None:
        import termios
        import tty

        self._file = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._file)
        tty.setcbreak(self._file)
        mode = termios.tcgetattr(self._file)
        # A read never blocks: Ctrl-C discards what `select` has just announced.
        mode[6][termios.VMIN] = mode[6][termios.VTIME] = 0
        termios.tcsetattr(self._file, termios.TCSANOW, mode)

    def read(self, seconds: float) -> str:
        """What is pressed in this time, or ""."""
        import os
        import select

        ready, _, _ = select.select([self._file], [], [], seconds)
        return os.read(self._file, 64).decode(errors="replace") if ready else ""

    def close(self) -> None:
        import termios

        termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)


class _WindowsKeyboard:
    """The same on Windows."""

    def read(self, seconds: float) -> str:
        if sys.platform == "win32":
            import msvcrt
            import time

            if msvcrt.kbhit():
                return msvcrt.getwch()
            time.sleep(seconds)
        return ""

    def close(self) -> None:
        pass
