"""For graders: each task is a test that fails with the checker's report.

    pytest lessons/exercises -k 05
    TINYRVLLM_LESSONS_SEED=1234 pytest lessons/exercises      other inputs than the students see
"""

import os

import pytest

from lessons import check, judge
from lessons.spec import Task, all_tasks

SEED = int(os.environ.get("TINYRVLLM_LESSONS_SEED", judge.SEED))
LIMIT = float(os.environ.get("TINYRVLLM_LESSONS_LIMIT", "300"))  # seconds a task


@pytest.mark.parametrize("task", all_tasks(), ids=lambda task: f"{task.number}-{task.name}")
def test_answer(task: Task) -> None:
    result = check.judged_apart(task, task.stub, SEED, LIMIT)
    if not result.passed:
        pytest.fail(result.report, pytrace=False)
