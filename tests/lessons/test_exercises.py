"""Graders can trust the checker: every wrong answer is caught at its line, every right one passes."""

from pathlib import Path

import pytest

from lessons import check, wrong
from lessons.spec import Task, all_tasks

TASKS = all_tasks()
MUTANTS = [mutant for task in TASKS for mutant in wrong.mutants(task)]
ANSWERS = [(task, path) for task in TASKS for path in task.answers]


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
