"""Graders can trust the checker: every wrong answer is caught at its line, every right one passes."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from lessons import check, wrong
from lessons.spec import SOLUTIONS, Task, all_tasks, tasks
from tinyrvllm.kernels import embedding
from tinyrvllm.kernels.launch import whole
from tinyrvllm.kernels.quant import Matrix
from tinyrvllm.mtl import open_device
from tinyrvllm.mtl.library import splice

ROOT = Path(__file__).parents[2]
TASKS = all_tasks()
MUTANTS = [mutant for task in TASKS for mutant in wrong.mutants(task)]
ANSWERS = [(task, path) for task in TASKS for path in task.answers]


def test_the_table_of_layers_lists_every_exercise() -> None:
    listed = set()
    for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 8 and cells[4].isdigit():
            listed |= {(cells[4], name) for name in re.findall(r"`(\w+)`", cells[6])}
    assert listed == {(task.number, task.name) for task in TASKS}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.number}-{task.name}")
def test_there_are_enough_answers(task: Task) -> None:
    assert len(wrong.mutants(task)) >= 5, "expected at least five wrong answers"
    assert len(task.answers) >= 2, f"expected two different right answers, found {task.answers}"
    assert task.stub.is_file() and task.statement and len(task.hints) == 3


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.number}-{task.name}")
def test_the_stub_fails_with_a_line_of_its_own(task: Task) -> None:
    result = check.judged(task, task.stub)
    assert not result.passed
    assert result.report.startswith(f"{task.stub.name}:{result.line}: ")
    assert 1 <= result.line <= len(task.stub.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize(
    ("task", "path"), ANSWERS, ids=[f"{task.number}-{path.stem}" for task, path in ANSWERS]
)
def test_right_answer_passes(task: Task, path: Path) -> None:
    result = check.judged(task, path)
    assert result.passed, result.report
    other = check.judged(task, path, seed=2026)
    assert other.passed, f"with other inputs: {other.report}"


@pytest.mark.parametrize(
    "mutant", MUTANTS, ids=lambda mutant: f"{mutant.task.number}-{mutant.task.name}-{mutant.name}"
)
def test_wrong_answer_is_caught_at_its_line(mutant: wrong.Mutant) -> None:
    result = check.judged_mutant(mutant)
    assert not result.passed, f"not caught: {mutant.mistake}"
    assert result.report.startswith(f"{mutant.task.stub.name}:{result.line}: ")
    assert abs(result.line - mutant.line) <= 1, (
        f"{mutant.mistake}: expected line {mutant.line}, found\n{result.report}"
    )


@pytest.mark.parametrize("path", tasks("07")[0].answers, ids=lambda path: path.stem)
def test_embed_leaves_the_sums_that_the_engine_s_norms_want(path: Path) -> None:
    """The checker judges y alone; in the engine a folded norm reads the sums of squares too."""
    table = np.random.default_rng(0).standard_normal((3, 576)).astype(np.float32)
    with open_device("soft") as device:
        ids = whole(device.from_numpy(np.array([2, -1, 0], np.int32)))
        y, sums = whole(device.buffer(table.nbytes)), whole(device.buffer(4 * 3 * 2))
        weight = Matrix(whole(device.from_numpy(table)), GGMLQuantizationType.F32, 3, 576)
        launch = embedding.launch(ids, weight, y, 3, squares=sums)
        found = []
        theirs = device.library_from_source(splice(path), path.name)
        for library in (device.library("embedding"), theirs):
            with device.commands() as commands, commands.encoder() as encoder:
                encoder.dispatch(
                    library.pipeline("embed", dict(launch.constants)),
                    launch.groups,
                    launch.threads,
                    [(argument.span.buffer, argument.span.offset) for argument in launch.arguments],
                    launch.parameters,
                )
            found.append(sums.buffer.numpy(np.float32).copy())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)


# ---- the command line


def answer(tmp_path: Path, name: str, old: str, new: str) -> Path:
    """Our solution of lesson 03 with a change."""
    text = (SOLUTIONS / "03" / "gate.metal").read_text(encoding="utf-8")
    path = tmp_path / name
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


def test_an_endless_loop_ends_with_a_report(tmp_path: Path) -> None:
    path = answer(tmp_path, "gate.metal", "y[i] = value;", "while (a.count) y[i] = value;")
    (task,) = tasks("03")
    result = check.judged_apart(task, path, seed=7, limit=5)
    assert not result.passed
    assert "did not end within 5 s: look for an endless loop" in result.report


def test_a_file_elsewhere_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = answer(tmp_path, "mine.metal", "exp(-v)", "exp(v)")
    assert check.main(["3", "gate", "--file", str(path), "--json", "--here"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["report"].startswith(f"mine.metal:{result['line']}: silu is ")
    assert check.main(["03", "--solutions", "--here"]) == 0
    assert "pass  03 gate" in capsys.readouterr().out


def test_a_folder_of_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["03", "--start", str(tmp_path)]) == 0
    answer(tmp_path, "03/gate.metal", "", "")
    assert check.main(["03", "--start", str(tmp_path)]) == 0
    assert [line[:5] for line in capsys.readouterr().out.splitlines()] == ["made ", "kept "]
    arguments = ["--answers", str(tmp_path), "--json", "--here"]
    assert check.main(["03", *arguments]) == 0
    costs = json.loads(capsys.readouterr().out)["costs"]
    assert costs["yours"] == costs["ours"] and costs["ours"]["bytes_written"] == 4000
    assert check.main(["04", *arguments]) == 1
    assert "no answer: expected a file" in json.loads(capsys.readouterr().out)["report"]


def test_hints_and_contents(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["05", "rmsnorm", "--hint", "1"]) == 0
    text = capsys.readouterr().out
    assert "Hint 1" in text and "Hint 2" not in text
    assert check.main([]) == 0
    text = capsys.readouterr().out
    assert all(f"{task.number} {task.name}" in text for task in TASKS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["02"], "expected a lesson with exercises (03, "),
        (["05", "argmax"], "expected a task of lesson 05 (rmsnorm, softmax), found 'argmax'"),
        (["05", "--file", "x.metal"], "say which task it answers: rmsnorm, softmax"),
        (["03", "--file", "no_such.metal"], "found no file no_such.metal"),
    ],
)
def test_a_wrong_command_is_told(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check.main(arguments) == 2
    assert message in capsys.readouterr().err
