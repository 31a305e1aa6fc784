"""A second way to a mistaken line: which lines of ours, in place of yours, make a case pass?

Tried where no variable tells (matrices cannot be watched, and names may be the student's own). The
lines of the answer are compared with each of our solutions; where they differ in few places, one
place at a time is replaced. The report names the line and does not show what was put there.
"""

import re
import tempfile
from collections.abc import Callable
from difflib import SequenceMatcher
from pathlib import Path

from lessons.spec import Task

TRIALS = 6  # differing places that are tried, for each solution


def mistaken_line(task: Task, path: Path, passes: Callable[[Path], bool]) -> int | None:
    """The first line of the one place that must change, or None."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for solution in task.answers[::-1]:  # ours first
        ours = solution.read_text(encoding="utf-8").splitlines()
        mine, theirs = code(lines), code(ours)
        matcher = SequenceMatcher(None, [t for _, t in mine], [t for _, t in theirs], False)
        places = [codes for codes in matcher.get_opcodes() if codes[0] != "equal"]
        if len(places) > TRIALS:
            continue
        for _, i, j, k, m in places:
            start = mine[i][0] if i < len(mine) else len(lines)
            end = mine[j - 1][0] + 1 if j > i else start
            patched = [*lines[:start], *(ours[n] for n, _ in theirs[k:m]), *lines[end:]]
            with tempfile.TemporaryDirectory(prefix="tinyrvllm-") as folder:
                trial = Path(folder) / path.name
                trial.write_text("\n".join(patched) + "\n", encoding="utf-8")
                if passes(trial):
                    return start + 1
    return None


def code(lines: list[str]) -> list[tuple[int, str]]:
    """(index, text without comment and spacing) of the lines that have any code."""
    stripped = [re.sub(r"\s+", " ", line.split("//")[0]).strip() for line in lines]
    return [(i, text) for i, text in enumerate(stripped) if text]
