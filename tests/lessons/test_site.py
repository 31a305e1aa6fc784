"""The site builds without a warning: every link, reference and docstring of it resolves."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
LESSONS = sorted((ROOT / "lessons").glob("[0-9][0-9]_*.py"))


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))


def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    for package in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(package, reason=f"the site needs {package}: pip install .[docs]")
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html",
         "-d", str(tmp_path / "doctrees"), str(DOCS), str(tmp_path / "site")],
        env=os.environ | {"TINYRVLLM_LESSONS": "text"}, capture_output=True,
        encoding="utf-8", check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "site" / "architecture.html").is_file()


def test_cells_of_a_script() -> None:
    import cells

    script = Path(__file__).parent / "fixtures" / "percent.py"
    found = cells.read(script)
    assert [(cell.kind, cell.line) for cell in found] == [
        ("text", 1), ("code", 5), ("text", 8), ("code", 12), ("text", 16),
    ]  # fmt: skip
    assert found[0].source == "# A title\n\nAnd a text."
    assert found[2].source == "Words that explain.\nIn two lines."


def test_cells_run_in_one_namespace_and_keep_their_output_apart(tmp_path: Path) -> None:
    import cells

    script = Path(__file__).parent / "fixtures" / "percent.py"
    assert cells.run(script, cells.read(script), tmp_path) == ["", "42\n"]


def test_a_lesson_that_fails_says_where(tmp_path: Path) -> None:
    import cells

    script = tmp_path / "wrong.py"
    script.write_text('"""# T"""\n\n# %%\nx = 1\n\n# %%\nx / 0\n')
    with pytest.raises(RuntimeError, match=r"line 7[\s\S]*ZeroDivisionError"):
        cells.run(script, cells.read(script), tmp_path)


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_notebook_is_the_lesson(lesson: Path) -> None:
    """Colab opens the committed notebooks; `python docs/make_notebooks.py` makes them again."""
    import make_notebooks

    path = ROOT / "notebooks" / f"{lesson.stem}.ipynb"
    assert path.is_file(), f"run: python docs/make_notebooks.py (there is no {path.name})"
    is_same = path.read_text(encoding="utf-8") == make_notebooks.make(lesson)
    assert is_same, f"{path.name} is not {lesson.name} any more; run: python docs/make_notebooks.py"
