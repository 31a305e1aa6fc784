"""docs/add_an_architecture.md does what it says: its changes apply, and the new model is right."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TUTORIAL = (ROOT / "docs" / "add_an_architecture.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TUTORIAL, flags=re.MULTILINE | re.DOTALL)


def test_it_is_at_most_100_lines() -> None:
    added = re.findall(r"^\+(?!\+\+).*\S", "".join(blocks("diff")), flags=re.MULTILINE)
    (script,) = blocks("python")
    lines = len(added) + len(script.splitlines())
    assert 0 < lines <= 100, f"the tutorial adds {lines} lines: its title says 100"


def test_the_tutorial_works(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("this machine has no git, which applies the tutorial's changes")
    package = tmp_path / "tinyrvllm"
    shutil.copytree(ROOT / "tinyrvllm", package, ignore=shutil.ignore_patterns("__pycache__"))
    (script,) = blocks("python")
    (tmp_path / "try_olmo2.py").write_text(script, encoding="utf-8")
    before = run(tmp_path)
    assert before.returncode != 0
    assert "'olmo2' is not supported" in before.stderr
    # -C1: what others changed nearby does not matter, as long as the lines themselves stand.
    applied = subprocess.run(
        ["git", "apply", "-C1", "-"], input="".join(blocks("diff")), cwd=tmp_path,
        env=environment(tmp_path), capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    assert applied.returncode == 0, (
        f"docs/add_an_architecture.md is out of step with the package: {applied.stderr}"
    )
    after = run(tmp_path)
    assert after.returncode == 0, after.stderr
    assert re.findall(r"^(\w+): furthest from the paper", after.stdout, re.MULTILINE) == [
        "cpu", "soft",
    ]  # fmt: skip


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "try_olmo2.py"], cwd=folder, env=environment(folder),
        capture_output=True, encoding="utf-8", check=False, timeout=600,
    )  # fmt: skip


def environment(folder: Path) -> dict[str, str]:
    """The copy of the package first, and git not to look for a repository above the folder."""
    own = {"PYTHONPATH": str(folder), "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    return os.environ | own | {"PYTHONIOENCODING": "utf-8"}
