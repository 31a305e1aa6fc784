"""A built wheel works outside the checkout, with the files that are not Python."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.tiny_models import write_model

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the unpacked wheel: what pip would put into site-packages."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [
            sys.executable, "-m", "build", "--wheel", "--no-isolation",
            "--outdir", str(folder), str(ROOT),
        ],
        check=True, capture_output=True,
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=installed.parent, env={**os.environ, "PYTHONPATH": str(installed)},
        check=True, capture_output=True, text=True,
    )


def test_generate_runs(installed: Path, tmp_path: Path) -> None:
    where = run(installed, "-c", "import tinyrvllm; print(tinyrvllm.__file__)").stdout
    assert Path(where.strip()).is_relative_to(installed)
    model = str(write_model(tmp_path / "tiny.gguf"))
    arguments = ("--model", model, "--prompt", "Hi", "-n", "2", "--ignore-eos", "--json")
    assert '"finish_reason": "length"' in run(installed, "-m", "tinyrvllm.generate", *arguments).stdout


def test_every_file_of_the_package_is_in_the_wheel(installed: Path) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "tinyrvllm"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    missing = [name for name in tracked if not (installed / name).is_file()]
    assert not missing
