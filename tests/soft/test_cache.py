"""The cache of compiled kernels: found again, rebuilt when damaged, shared by processes."""

import errno
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.stopping import stopped_at
from tinyrvllm import mtl
from tinyrvllm.soft.cpu import cache, compiler, native
from tinyrvllm.soft.cpu.execute import Dispatch, run
from tinyrvllm.soft.cpu.library import compile_library

SOURCE = """#include <metal_stdlib>
kernel void twice(device float *a [[buffer(0)]], uint i [[thread_position_in_grid]]) { a[i] *= 2; }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TINYRVLLM_CACHE", str(tmp_path))
    return tmp_path


def result() -> float:
    """Compiles (or finds) the kernel anew and runs it on 21."""
    a = np.array([21], np.float32)
    kernel = compile_library(SOURCE, filename="twice.metal").kernel("twice")
    run([Dispatch(kernel, {0: (a.ctypes.data, 4)}, (1, 1, 1), (1, 1, 1))])
    return float(a[0])


def kernels(folder: Path) -> list[Path]:
    return [p for p in (folder / "soft").glob(f"*{native.SUFFIX}") if b"msl_lead" in p.read_bytes()]


def test_the_second_time_nothing_is_written_or_compiled(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert result() == 42
    before = {p: p.stat().st_mtime_ns for p in (folder / "soft").iterdir()}
    monkeypatch.setattr(compiler.Compiler, "run", None)
    assert result() == 42
    assert {p: p.stat().st_mtime_ns for p in (folder / "soft").iterdir()} == before


@pytest.mark.parametrize("damage", [b"", b"not a library"])
def test_a_damaged_entry_is_rebuilt(folder: Path, damage: bytes) -> None:
    assert result() == 42
    (path,) = kernels(folder)
    whole = path.read_bytes()
    path.unlink()  # the loaded library keeps its file: a new one takes the name
    path.write_bytes(damage or whole[: len(whole) // 2])
    assert cache.get(path.name) is None
    assert result() == 42
    assert cache.get(path.name) == path


def test_the_source_and_its_macros_are_part_of_the_key(folder: Path) -> None:
    assert result() == 42
    thrice = SOURCE.replace("*= 2", "*= FACTOR")
    for factor in (3, 4):
        a = np.array([21], np.float32)
        library = compile_library(thrice, filename="twice.metal", defines=[f"FACTOR={factor}"])
        kernel = library.kernel("twice")
        run([Dispatch(kernel, {0: (a.ctypes.data, 4)}, (1, 1, 1), (1, 1, 1))])
        assert a[0] == 21 * factor


def test_an_included_file_is_part_of_the_key(folder: Path, tmp_path: Path) -> None:
    source = '#include "factor.h"\n' + SOURCE.replace("*= 2", "*= FACTOR")
    for factor in (5, 6):
        (tmp_path / "factor.h").write_text(f"#define FACTOR {factor}\n")
        library = compile_library(source, filename="twice.metal", include=[tmp_path])
        a = np.array([21], np.float32)
        run([Dispatch(library.kernel("twice"), {0: (a.ctypes.data, 4)}, (1, 1, 1), (1, 1, 1))])
        assert a[0] == 21 * factor


def test_two_processes_at_once(folder: Path) -> None:
    code = "from tests.soft.test_cache import result; print(result())"
    root = Path(__file__).parents[2]
    started = [
        subprocess.Popen([sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [p.communicate()[0].strip() for p in started] == ["42.0", "42.0"]
    assert len(kernels(folder)) == 1


# ---- faults: whatever fails, the answer is right or an error says why, and the cache stays whole


@pytest.mark.parametrize("where", ["mkdir", "write_bytes", "replace"])
def test_a_full_disk_costs_the_cache_and_nothing_else(
    where: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = str(folder / "soft")
    owner = os if where == "replace" else Path
    original = getattr(owner, where)

    def fail(*arguments: object, **named: object) -> object:
        if str(arguments[0]).startswith(elsewhere):
            if where == "write_bytes":  # a part of it finds room
                original(arguments[0], arguments[1][:1])  # type: ignore[index]
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(*arguments, **named)

    monkeypatch.setattr(owner, where, fail)
    with pytest.warns(UserWarning, match="cannot be kept.*No space left.*TINYRVLLM_CACHE"):
        assert result() == 42
    assert not list((folder / "soft").glob("*"))  # no part of a file either
    monkeypatch.undo()
    monkeypatch.setenv("TINYRVLLM_CACHE", str(folder))
    assert result() == 42 and len(kernels(folder)) == 1


def test_no_room_anywhere_is_an_error_that_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with mtl.open_device("soft") as device:
        monkeypatch.setattr(Path, "write_bytes", fail)
        monkeypatch.setattr(tempfile, "mkdtemp", fail)
        with pytest.raises(mtl.MetalError, match="does not compile:\n.*No space left on device"):
            device.library_from_source(SOURCE + "// no room")


@pytest.mark.parametrize("entries", [0, 1, 2, 4])
def test_a_process_killed_while_it_fills_the_cache(entries: int, folder: Path) -> None:
    code = "from tests.soft.test_cache import result; print(result())"
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", code], cwd=root, stdout=subprocess.PIPE) as process:
        soft = folder / "soft"
        while process.poll() is None and len(list(soft.glob("*"))) < entries:
            time.sleep(0.001)
        process.kill()
    assert result() == 42  # what it left is whole, or not given out
    assert [p for p in kernels(folder) if cache.get(p.name)]


def at_each_line(stop: Callable[..., bool]) -> int:
    """Stops `put` over an older entry at each of its lines; after how many something is left over.

    What the cache gives out is the old content or the new, whole.
    """
    old, new = b"old" * 50_000, b"new" * 50_000
    left_over = 0
    for line in itertools.count(1):
        before = len(list(cache.put("a", old).parent.iterdir()))
        stopped = stop(line, (cache,), lambda: cache.put("a", new))
        found = cache.get("a")
        assert found is None or found.read_bytes() in (old, new), f"at line {line}"
        left_over += len(list(cache.directory().iterdir())) - before
        if not stopped:
            assert line > 20 and found is not None
            return left_over
    raise AssertionError


def test_ctrl_c_at_every_line_of_storing(folder: Path) -> None:
    assert at_each_line(stopped_at) <= 1  # just before it would have tidied up


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_killed_at_every_line_of_storing(folder: Path) -> None:
    code = (  # a process without threads, which may fork
        "from tests.soft.test_cache import at_each_line\n"
        "from tests.stopping import killed_at\n"
        "at_each_line(killed_at)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True)
