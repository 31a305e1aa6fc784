"""The tests of the bridge and of the software device are sharp: they catch changed lines.

The fast form of this is `test_broken_hosts.py`, whose 61 changes of the bridge need no process.
"""

import pytest

from tests.soft.mutate import PARTS, judge, mutants, of_header, of_python, sample

PYTHON = '''
def clip(x: int, low: int = 0) -> int:
    """Not below low: 2 < 3."""
    if x < low and x != 7:
        raise ValueError(f"{x + 1} is below")
    notes.append(x)
    return max(low, x - 1)
'''


def test_changes_of_python() -> None:
    made = {what: text for _, what, text in of_python(PYTHON)}
    assert sorted(what.split(":")[0] for what in made) == [
        "and/or", "arithmetic", "dropped", "negated", "nothing returned", "one more", "one more",
        "one more", "swapped", "turned", "turned",
    ]  # fmt: skip
    assert "if x <= low and x != 7" in made["turned: x < low"]
    assert "max(x - 1, low)" in made["swapped: max(low, x - 1)"]
    assert all("is below" in text and "2 < 3" in text for text in made.values())


def test_changes_of_cpp() -> None:
    text = "// a < b\n#if A < B\n  if (i + 1 < n) a[i] = x & 3;\n"
    found = [(line, what.split(" in ")[0]) for line, what, _ in of_header(text)]
    assert found == [(3, "<"), (3, "+"), (3, "&"), (3, "1"), (3, "3")]


@pytest.mark.long
def test_a_changed_line_is_caught() -> None:
    [mutant] = [m for m in mutants("bridge") if m.what == "negated: if self.in_flight:"]
    assert judge(mutant) == "caught"


@pytest.mark.long
@pytest.mark.parametrize("part", PARTS)
def test_most_changed_lines_are_caught(part: str) -> None:
    """The survivors that are known are listed, with the reason, in docs/evidence.md."""
    verdicts = {m: judge(m) for m in sample(part, 40, 0)}
    survivors = [str(m) for m, verdict in verdicts.items() if verdict == "survived"]
    tried = sum(verdict != "refused" for verdict in verdicts.values())
    assert len(survivors) <= tried / 20, survivors
