"""Judges exercises: python -m lessons.check 05

Says that an answer passes and what it costs beside ours; or the first thing that is wrong with it,
with its line. Needs no GPU and no Mac: kernels run on the checking software device.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from lessons import cost, host, judge, wrong
from lessons.spec import HERE, HostTask, SpecError, Task, all_tasks, numbers, tasks
from tinyrvllm.errors import TinyrvllmError

EXAMPLES = """\
examples:
  python -m lessons.check                      which exercises there are
  python -m lessons.check 05                   judge your answers to lesson 05
  python -m lessons.check 05 rmsnorm --hint 1  the task in words, and a first hint (there are 3)
  python -m lessons.check 05 rmsnorm --file my/rmsnorm.metal
  python -m lessons.check --all --solutions    do our own solutions pass?
  python -m lessons.check 05 --mutants         are wrong answers caught, and at their line?
  python -m lessons.check --all --json --seed 1234     for graders: other inputs, JSON lines

exit status: 0 all pass, 1 some do not, 2 a mistake in the request
"""


@dataclass
class Result:
    """What is said about one answer; one object of --json."""

    exercise: str  # "05 rmsnorm"
    file: str
    passed: bool
    report: str  # what is wrong, the first line starting with FILE:LINE; "" when it passes
    line: int = 0
    cost: str = ""  # the table, when it passes
    costs: dict[str, dict[str, float]] = field(default_factory=dict)  # "yours", "ours": its numbers


def judged(task: Task, path: Path, seed: int = judge.SEED) -> Result:
    """Judges an answer in this process."""
    exercise = f"{task.number} {task.name}"
    try:
        if isinstance(task, HostTask):
            host.check(task, path)
            return Result(exercise, shown(path), True, "")
        judging = judge.Judge(task, path)
        cases = judge.cases(task, seed)
        for case in cases:
            judging.check(case)
    except judge.Wrong as found:
        return Result(exercise, shown(path), False, str(found), found.line)
    title, ours = our_cost(task)
    yours = cost.cost(judging.run(cases[0]).log)
    costs = {"yours": asdict(yours), "ours": asdict(ours)}
    return Result(exercise, shown(path), True, "", 0, cost.table(yours, ours, title), costs)


@cache
def our_cost(task: Task) -> tuple[str, cost.Cost]:
    """What our solution needs for the first case, and that case's title."""
    first = judge.cases(task)[0]
    return first.title, cost.cost(judge.Judge(task, task.solution).run(first).log)


def judged_apart(task: Task, path: Path, seed: int, limit: float) -> Result:
    """Judges an answer in a process of its own: an endless loop or a crash ends only that."""
    command = [
        sys.executable, "-m", "lessons.check", task.number, task.name, "--file", str(path),
        "--seed", str(seed), "--json", "--here",
    ]  # fmt: skip
    exercise = f"{task.number} {task.name}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path])}
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", timeout=limit, check=False,
            env=environment,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        report = f"{path.name}:1: it did not end within {limit:g} s: look for an endless loop"
        return Result(exercise, shown(path), False, report, 1)
    if done.returncode == 2:
        raise SpecError(done.stderr.strip().removeprefix("error: "))
    try:
        return Result(**json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, IndexError):
        report = f"{path.name}:1: judging it ended with status {done.returncode}:\n{done.stderr}"
        return Result(exercise, shown(path), False, report, 1)


def shown(path: Path) -> str:
    """The path as one would type it here."""
    path = path.resolve()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def text_of(result: Result, task: Task) -> str:
    """What is printed for one answer."""
    if result.passed:
        lines = [f"pass  {result.exercise}  ({result.file})"]
        lines += [result.cost] if result.cost else []
        if task.engine:
            lines.append(
                "  in the engine: python -m tinyrvllm.generate --device soft -n 8 --temp 0 "
                f'--prompt "The capital of France is" {task.engine} '
                f"--kernel {task.kernel}={result.file}"
            )
        return "\n".join(lines)
    return (
        f"FAIL  {result.exercise}  ({result.file})\n\n{result.report}\n\n"
        f"  the task and a hint: python -m lessons.check {task.number} {task.name} --hint 1"
    )


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m lessons.check",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = top.add_argument
    add("lesson", nargs="?", help="a lesson's number, such as 05")
    add("task", nargs="?", help="one of its tasks; all of them if left out")
    add("--all", action="store_true", help="the exercises of all lessons")
    add("--solutions", action="store_true", help="judge our solutions instead of your answers")
    add("--mutants", action="store_true", help="judge our collection of wrong answers")
    add("--file", type=Path, metavar="FILE", help="your answer, where it is not the stub")
    add(
        "--answers", type=Path, metavar="DIR",
        help="a folder of answers, DIR/05/rmsnorm.metal and so on, instead of lessons/exercises",
    )  # fmt: skip
    add("--start", type=Path, metavar="DIR", help="copy the stubs to such a folder, and end")
    add("--hint", type=int, metavar="N", help="show the task and its first N hints; judge nothing")
    add("--seed", type=int, default=judge.SEED, help="of the random inputs (default: %(default)s)")
    add("--limit", type=float, default=300, metavar="S", help="seconds an answer (default: 300)")
    add("--json", action="store_true", help="one JSON object for each answer")
    add("--here", action="store_true", help="judge in this process: to debug the checker itself")
    return top


def chosen(args: argparse.Namespace) -> list[Task]:
    """The tasks that the command line means. Raises SpecError."""
    if args.all:
        return all_tasks()
    found = list(tasks(args.lesson.zfill(2)))
    if args.task is not None:
        names = ", ".join(task.name for task in found)
        found = [task for task in found if task.name == args.task]
        if not found:
            raise SpecError(
                f"expected a task of lesson {args.lesson} ({names}), found {args.task!r}"
            )
    if args.file and len(found) > 1:
        raise SpecError(f"--file: say which task it answers: {', '.join(t.name for t in found)}")
    return found


def judged_mutant(mutant: wrong.Mutant) -> Result:
    """Judges a wrong answer, under the name of the file that a student would hand in."""
    with tempfile.TemporaryDirectory(prefix="tinyrvllm-") as folder:
        path = Path(folder) / mutant.task.stub.name
        path.write_text(mutant.text, encoding="utf-8")
        return judged(mutant.task, path)


def print_mutant(mutant: wrong.Mutant) -> bool:
    """A row of the mutants' table; whether the report's first line is the mistaken one."""
    result = judged_mutant(mutant)
    right = not result.passed and abs(result.line - mutant.line) <= 1
    first = result.report.splitlines()[0] if result.report else "it passes"
    print(f"{'ok  ' if right else 'BAD '} {result.exercise} {mutant.name}: {mutant.mistake}")
    print(f"       line {mutant.line}; told: {first}", flush=True)
    return right


def start(folder: Path, found: list[Task]) -> None:
    """Copies stubs to a folder of answers. What is there already stays as it is."""
    for task in found:
        path = task.answer(folder)
        if path.exists():
            print(f"kept  {shown(path)}")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(task.stub, path)
        print(f"made  {shown(path)}")


def contents() -> str:
    """The list of all exercises."""
    lines = ["exercise         your file"]
    for number in numbers():
        lines += [f"{number} {t.name:13} {shown(t.stub)}" for t in tasks(number)]
    return "\n".join([*lines, "", "judge one lesson's answers: python -m lessons.check 05"])


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    args = parser().parse_args(arguments)
    try:
        if args.start:
            start(args.start, chosen(args) if args.lesson else all_tasks())
            return 0
        if args.lesson is None and not args.all:
            print(contents())
            return 0
        found = chosen(args)
        if args.hint is not None:
            for task in found:
                hints = [f"Hint {n}\n{hint}" for n, hint in enumerate(task.hints[: args.hint], 1)]
                print("\n\n".join([task.statement, *hints, f"Your file: {shown(task.stub)}\n"]))
            return 0
        if args.file and not args.file.is_file():
            raise SpecError(f"--file: expected your answer, found no file {args.file}")
        if args.mutants:
            told = [print_mutant(mutant) for task in found for mutant in wrong.mutants(task)]
            print(f"{sum(told)} of {len(told)} wrong answers are caught at their line")
            return 0 if all(told) else 1
        passed = True
        for task in found:
            path = args.file or (task.solution if args.solutions else task.answer(args.answers))
            if not path.is_file():
                report = f"{path.name}:1: no answer: expected a file {shown(path)}"
                result = Result(f"{task.number} {task.name}", shown(path), False, report, 1)
            elif args.here:
                result = judged(task, path, args.seed)
            else:
                result = judged_apart(task, path, args.seed, args.limit)
            text = json.dumps(asdict(result)) if args.json else text_of(result, task) + "\n"
            print(text, flush=True)
            passed = passed and result.passed
    except (SpecError, TinyrvllmError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has gone (| head): nothing more can be said
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
