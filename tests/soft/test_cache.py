"""The cache of compiled kernels: found again, rebuilt when damaged, shared by processes."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tinyrvllm.soft.cpu import cache, native
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


def test_the_second_time_nothing_is_written_and_it_is_fast(folder: Path) -> None:
    assert result() == 42
    before = {p: p.stat().st_mtime_ns for p in (folder / "soft").iterdir()}
    start = time.perf_counter()
    assert result() == 42
    seconds = time.perf_counter() - start
    assert {p: p.stat().st_mtime_ns for p in (folder / "soft").iterdir()} == before
    assert seconds < 0.5, "a library from the cache took as long as one that is compiled"


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
