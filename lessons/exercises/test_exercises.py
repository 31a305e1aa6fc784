"""For graders: each task is a test that fails with the checker's report.

    pytest lessons/exercises -k 05
    TINYRVLLM_LESSONS_SEED=1234 pytest lessons/exercises         other inputs than the students see
    TINYRVLLM_LESSONS_ANSWERS=answers pytest lessons/exercises   answers/05/rmsnorm.metal and so on
"""

import os
from pathlib import Path

import pytest

from lessons import check, judge
from lessons.spec import EXERCISES, Task, all_tasks

SEED = int(os.environ.get("TINYRVLLM_LESSONS_SEED", judge.SEED))
ANSWERS = Path(os.environ.get("TINYRVLLM_LESSONS_ANSWERS", EXERCISES))
LIMIT = float(os.environ.get("TINYRVLLM_LESSONS_LIMIT", "300"))  # seconds a task


@pytest.mark.parametrize("task", all_tasks(), ids=lambda task: f"{task.number}-{task.name}")
def test_answer(task: Task) -> None:
    path = task.answer(ANSWERS)
    assert path.is_file(), f"no answer: expected a file {path}"
    result = check.judged_apart(task, path, SEED, LIMIT)
    if not result.passed:
        pytest.fail(result.report, pytrace=False)
