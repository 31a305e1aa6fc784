"""Every lesson runs to its end, by itself, with nothing but the package and its own folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
LESSONS = sorted((ROOT / "lessons").glob("[0-9][0-9]_*.py"))
# Kernels take their time to compile. `make lessons` and `make docs`, which CI runs, have all lessons.
SHORT = ("01", "03", "05", "09", "13", "14")
CASES = [
    pytest.param(path, marks=() if path.stem[:2] in SHORT else pytest.mark.long, id=path.stem)
    for path in LESSONS
]


@pytest.mark.parametrize("lesson", CASES)
def test_a_lesson_runs(lesson: Path, tmp_path: Path) -> None:
    environment = os.environ | {
        "TINYRVLLM_PICTURES": str(tmp_path), "PYTHONIOENCODING": "utf-8", "MPLBACKEND": "svg",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(lesson), "--device", "soft"], cwd=ROOT, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "Warning" not in done.stdout, done.stdout
    said = re.findall(r"^picture: (.+)$", done.stdout, re.MULTILINE)
    assert {Path(name).name for name in said} == {path.name for path in tmp_path.iterdir()}
