"""The collection of wrong answers: `mutants/NN/TASK.toml`, each a mistake that students make.

A table of the file is one wrong answer: our solution with `old`, which occurs once in it, replaced
by `new`. The first line in which the two differ is the mistaken one, or that of `at` in `new`; a
report must name it, give or take a line. `mistake` says in words what is wrong; `of` names another
solution to start from.
"""

import tomllib
from dataclasses import dataclass
from itertools import zip_longest

from lessons.spec import MUTANTS, SpecError, Task


@dataclass(frozen=True)
class Mutant:
    task: Task
    name: str
    mistake: str
    text: str  # of the whole file
    line: int  # the mistaken one


def mutants(task: Task) -> list[Mutant]:
    """The wrong answers to a task. Raises SpecError for a table that fits no solution."""
    path = MUTANTS / task.number / f"{task.name}.toml"
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return [_mutant(task, name, table) for name, table in tables.items()]


def _mutant(task: Task, name: str, table: dict[str, str]) -> Mutant:
    solution = task.solution.with_name(table.get("of", task.solution.name))
    text, old, new = solution.read_text(encoding="utf-8"), table["old"], table["new"]
    if text.count(old) != 1:
        raise SpecError(
            f"mutant {task.number} {task.name} {name}: expected its 'old' once in "
            f"{solution.name}, found it {text.count(old)} times"
        )
    start = text.index(old)
    pairs = zip_longest(old.splitlines(), new.splitlines())
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), 0)
    if "at" in table:
        same = new[: new.index(table["at"])].count("\n")
    line = text[:start].count("\n") + 1 + same
    return Mutant(task, name, table["mistake"], text.replace(old, new), line)
