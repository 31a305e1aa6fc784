"""Which compiler is found, and what a machine without one is told."""

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tinyrvllm.soft.cpu import compiler
from tinyrvllm.soft.msl import MSLError


@pytest.fixture(autouse=True)
def ask_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    compiler.find.cache_clear()
    monkeypatch.delenv("TINYRVLLM_CLANG", raising=False)
    yield
    compiler.find.cache_clear()


def fake_clang(folder: Path, major: int) -> str:
    path = folder / f"clang-{major}"
    path.write_text(f"#!/bin/sh\necho 'clang version {major}.1.0'\n")
    path.chmod(0o755)
    return str(path)


def test_no_compiler_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(MSLError, match=r'found none: pip install "tinyrvllm\[soft\]", or set'):
        compiler.find()


def test_a_clang_of_ones_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TINYRVLLM_CLANG", fake_clang(tmp_path, 20))
    found = compiler.find()
    assert (found.clang, found.zig) == ((str(tmp_path / "clang-20"),), None)


def test_a_clang_that_is_too_old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TINYRVLLM_CLANG", fake_clang(tmp_path, 16))
    with pytest.raises(MSLError, match="clang-16 is clang 16; .* needs clang 19 or newer"):
        compiler.find()


def test_a_clang_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINYRVLLM_CLANG", "/nowhere/clang")
    with pytest.raises(MSLError, match="TINYRVLLM_CLANG names /nowhere/clang, which is no program"):
        compiler.find()


def test_an_old_clang_on_the_path_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    fake_clang(tmp_path, 16)
    new = fake_clang(tmp_path, 21)
    assert compiler.find().clang == (new,)
