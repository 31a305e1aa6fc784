"""Which line a fault comes from: where the device saw it is not always where the mistake is."""

import re
from typing import TYPE_CHECKING

from lessons.blame import Blame, blame
from lessons.spec import Case, flat, thread_of
from tinyrvllm.soft.cpu.report import Report

if TYPE_CHECKING:
    from lessons.judge import Judge

DIVERGENCE = ("barrier-divergence", "early-return", "simd-divergence", "simd-return")


def place_of_fault(judge: "Judge", case: Case, report: Report) -> tuple[int, list[str]]:
    """(line, what is wrong and more lines): what `Wrong` takes."""
    file, lines = judge.path.name, str(report).splitlines()
    line, clue = report.line, ""
    if report.file != file:  # in a helper of ours: the call is the student's
        calls = re.findall(rf"from {re.escape(file)}:(\d+)", str(report))
        line = int(calls[0]) if calls else 1
    elif found := wrong_index(judge, case, report):
        line, clue = found.line, found.text
    elif report.kind == "barrier-divergence":  # at two of them: the conditional one is wrong
        line = max((line, report.other_line), key=lambda n: " if" in judge.line_text(n))
    elif report.kind == "early-return" and (returns := returns_before(judge, line)):
        line, clue = returns[-1], f"threads that return here never reach line {line}"
    elif report.kind in ("race", "uninitialised"):
        line, clue = unordered(judge, case, report)
    told = [clue, "", f"  {lines[0]}"] if clue else [lines[0]]
    return line, [*told, *lines[1:]]


def wrong_index(judge: "Judge", case: Case, report: Report) -> Blame | None:
    """A whole number, such as an index, that was wrong before an access went wrong."""
    if "out-of-bounds" not in report.kind and report.kind != "race":
        return None
    width, height, _ = case.threads
    x, y, z = report.thread
    thread = thread_of(case, flat(report.threadgroup, case.groups), (z * height + y) * width + x)
    return blame(judge.events(case, thread), thread, case, judge.task.relative, whole=True)


def returns_before(judge: "Judge", line: int) -> list[int]:
    """Lines of `return` statements in the kernel before a line."""
    start = judge.library.functions[judge.task.kernel].line
    return [n for n in range(start, line) if re.search(r"\breturn\b", judge.line_text(n))]


def unordered(judge: "Judge", case: Case, report: Report) -> tuple[int, str]:
    """Where a barrier is missing or does not do: after the earlier of two accesses."""
    earlier, later = report.other_line, report.line
    if report.kind == "uninitialised":
        found = re.search(r"'(\w+)', .*\(byte (\d+)\)", report.message)
        name, byte = (found[1], int(found[2])) if found else ("", 0)
        stores = [a for a in judge.run(case).log.accesses(name) if a.verb != "read"]
        before = [n for a in stores if (n := a.line_in(judge.path.name)) < later]
        earlier = max(before, default=later)
        group = flat(report.threadgroup, case.groups)
        if not any(a.group == group and a.offset <= byte < a.offset + a.size for a in stores):
            return earlier, f"no thread writes '{name}' at byte {byte}, which line {later} reads"
    if earlier == later or "threadgroups of one dispatch" in report.message:
        return later, ""
    for number in range(earlier, later + 1):
        if "barrier(" in judge.line_text(number):
            return number, f"this does not order line {later} after line {earlier}"
    if report.message.startswith("data race: write") and earlier < later:
        return later, f"no barrier between line {earlier}, which reads, and this line"
    # Not inside a block that only the earlier one is in: after that.
    ends = [end for start, end in blocks(judge.text_lines)
            if start <= earlier <= end and not start <= later <= end]  # fmt: skip
    return max(ends, default=earlier), f"no barrier between line {earlier} and line {later}"


def blocks(lines: list[str]) -> list[tuple[int, int]]:
    """(first line, last line) of everything in braces."""
    opened, found = [], []
    for number, text in enumerate(lines, start=1):
        for character in text.split("//")[0]:
            if character == "{":
                opened.append(number)
            elif character == "}" and opened:
                found.append((opened.pop(), number))
    return found
