"""README's table of layers tells the truth: each layer has a module, a lesson, exercises, a test;
each shader and each kernel module is in it; and lessons import the engine, they do not copy it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGE, LESSONS = ROOT / "tinyrvllm", ROOT / "lessons"
FIRST_EXERCISE = 3
SHARED = {
    "bench", "case_attention", "case_choice", "case_layers", "case_matmul", "cases", "launch", "matmul", "shapes",
}  # fmt: skip
SAME_LINES = 5  # as many equal lines in a row are a copy
LESSON_FILES = sorted(LESSONS.glob("[0-9][0-9]_*.py"))


def rows() -> list[dict[str, str]]:
    """The table's rows, by its head."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    start = next(i for i, line in enumerate(lines) if line.startswith("| layer |"))
    head, *body = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:]
    )
    wide = [cells for cells in body if len(cells) == len(head)]
    return [dict(zip(head, cells, strict=True)) for cells in wide[1:]]


ROWS = rows()


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["layer"])
def test_what_a_row_names_exists(row: dict[str, str]) -> None:
    assert names(row["module"]), "expected a module"
    assert names(row["test"]), "expected a test"
    for path in (
        *(PACKAGE / name for name in names(row["module"])),
        *(PACKAGE / "shaders" / name for name in names(row["shader"])),
        *(ROOT / name for name in names(row["test"])),
    ):
        assert path.exists(), f"README says {path.relative_to(ROOT)}; there is no such file"
    if row["lesson"]:
        number = row["lesson"]
        assert len(list(LESSONS.glob(f"{number}_*.py"))) == 1, f"expected one lesson {number}"
        if int(number) >= FIRST_EXERCISE:
            assert (LESSONS / "exercises" / number / "spec.py").is_file(), (
                f"lesson {number} has no exercises"
            )


def test_every_lesson_is_of_a_layer() -> None:
    assert [path.stem[:2] for path in LESSON_FILES] == [f"{n:02}" for n in range(1, 16)]
    assert {path.stem[:2] for path in LESSON_FILES} == {row["lesson"] for row in ROWS} - {""}


def test_every_kernel_module_and_shader_is_in_the_table() -> None:
    modules = {f"kernels/{path.name}" for path in (PACKAGE / "kernels").glob("*.py")}
    modules -= {f"kernels/{name}.py" for name in SHARED | {"__init__"}}
    assert modules - {name for row in ROWS for name in names(row["module"])} == set()
    shaders = {path.name for path in (PACKAGE / "shaders").glob("*.metal")}
    assert shaders - {name for row in ROWS for name in names(row["shader"])} == set()


def runs(text: str) -> set[tuple[str, ...]]:
    """Every run of SAME_LINES lines that say something."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    lines = [line for line in lines if len(line) > 3 and not line.startswith(("#", "//", "import"))]
    lines = [line for line in lines if not line.startswith(("from ", '"""'))]
    return {tuple(lines[i : i + SAME_LINES]) for i in range(len(lines) - SAME_LINES + 1)}


@pytest.fixture(scope="module")
def engine() -> set[tuple[str, ...]]:
    paths = [path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".metal", ".h")]
    return set().union(*(runs(path.read_text(encoding="utf-8")) for path in paths))


@pytest.mark.parametrize("lesson", LESSON_FILES, ids=lambda path: path.stem)
def test_a_lesson_copies_nothing(lesson: Path, engine: set[tuple[str, ...]]) -> None:
    text = lesson.read_text(encoding="utf-8")
    assert "tinyrvllm" in text
    copied = runs(text) & engine
    assert not copied, f"{lesson.name} has lines of the engine, which it should import: {copied}"
