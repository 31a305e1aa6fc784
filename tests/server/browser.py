"""A headless Chromium, spoken to in its DevTools protocol over a pipe: no driver, no package.

    with Browser(chromium, 1440, 900) as page:
        page.open("http://127.0.0.1:8000/")
        page.wait("document.title != ''")
        page.screenshot(path)

Commands: chromedevtools.github.io/devtools-protocol. Messages are JSON, each ended by a null byte;
Chromium reads them from file descriptor 3 and writes to 4.
"""

import base64
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HANG_SECONDS = 300
# Puts two pipes where Chromium wants them, whatever numbers they have, and becomes it.
BECOME = """
import fcntl, os, sys
reads, writes = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(reads, 3)
os.dup2(writes, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page."""

    def __init__(
        self, program: str, width: int, height: int, hang_seconds: float = HANG_SECONDS
    ) -> None:
        self._hang_seconds = hang_seconds
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._size = (width, height)
        command_read, self._out = os.pipe()
        self._in, event_write = os.pipe()
        self._process = subprocess.Popen(
            [
                sys.executable, "-c", BECOME, str(command_read), str(event_write), program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                "--disable-dev-shm-usage", "--remote-debugging-pipe", "--no-first-run",
                "--disable-background-networking", f"--user-data-dir={self._folder.name}",
                f"--window-size={width},{height}",
            ],
            pass_fds=(command_read, event_write),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        os.close(command_read)
        os.close(event_write)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._session: str | None = None
        self.problems: list[str] = []  # exceptions and errors of the page's script

    def __enter__(self) -> Self:
        # A hang guard: without Chromium every read ends.
        self._guard = threading.Timer(self._hang_seconds, self._process.kill)
        self._guard.start()
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.send("Page.enable")
        self.send("Runtime.enable")
        self.resize(*self._size)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._guard.cancel()
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._folder.cleanup()

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)

    def resize(self, width: int, height: int, phone: bool = False) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=phone,
        )  # fmt: skip

    def prefer(self, scheme: str) -> None:
        """The colour scheme, "light" or "dark"."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.send("Emulation.setEmulatedMedia", features=[feature])

    def js(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise's is awaited."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Looks at an expression until it is true; its value."""
        while not (value := self.js(f"(() => {{ try {{ return {expression} }} catch {{}} }})()")):
            time.sleep(0.02)
        return value

    def screenshot(self, path: Path) -> None:
        """Saves a PNG."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command's result. Raises AssertionError for an error or when Chromium is gone."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            if answer.get("method") == "Runtime.exceptionThrown":
                self.problems.append(str(answer["params"]["exceptionDetails"]))
            is_call = answer.get("method") == "Runtime.consoleAPICalled"
            if is_call and answer["params"]["type"] == "error":
                self.problems.append(str(answer["params"]["args"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._in, 1 << 16)
            if not data:
                raise AssertionError(f"Chromium ended (or hung for {self._hang_seconds} s)")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(line))
