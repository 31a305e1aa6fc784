"""The tests of the bridge and of the software device are sharp: they catch changed lines.

The fast form of this is `test_broken_hosts.py`, whose 61 changes of the bridge need no process.
"""

from collections import Counter

import pytest

from tests.soft.mutants import of_header, of_python
from tests.soft.mutate import PARTS, equivalent, judged, mutants, sample

PYTHON = '''
MODE = api.MTLModeShared
SENT = objc.send.start, send.stop
def clip(x: int, low: int = 0) -> int:
    """Not below low: 2 < 3."""
    if x < low and x != 7:
        raise ValueError(f"{x + 1} is below")
    notes.append("ünï", x)
    return pick(max(2, low), x - 1)  # never
def none() -> bool:
    return False
'''


def test_changes_of_python() -> None:
    made = {what.removesuffix(" in clip"): text for _, what, text in of_python(PYTHON)}
    assert sorted(what.split(":")[0] for what in made) == [
        "and/or", "arithmetic", "dropped", "negated", "nothing returned", "one more", "one more",
        "one more", "one more", "one more", "other truth", "start sends stop", "swapped", "swapped",
        "turned", "turned",
    ]  # fmt: skip
    assert "if (x <= low) and x != 7" in made["turned: x < low"]
    assert "return (pick(x - 1, max(2, low)))  # never" in made["swapped: pick(max(2, low), x - 1)"]
    assert "notes.append(x, 'ünï')" in made["swapped: notes.append('ünï', x)"]
    assert "x != 8:" in made["one more: 7 of if x < low and x != 7:"]
    assert "MODE = (api.MTLModeShared + 1)" in made["one more: api.MTLModeShared in module"]
    assert all("is below" in text and "2 < 3" in text for text in made.values())


def test_changes_of_cpp() -> None:
    text = "#ifdef _WIN32\n a = 1 < 2;\n#else // a < b\n#if A < B\n  if (i + 1 < n) a[i] = x & 3;\n  s->a[i] |= f(2u);  // why\n#endif\n#endif\n"
    found = [(line, what.split(" in ")[0], new.split("\n")[line - 1]) for line, what, new in of_header(text)]
    assert found == [
        (5, "<", "  if (i + 1 <= n) a[i] = x & 3;"),
        (5, "+", "  if (i - 1 < n) a[i] = x & 3;"),
        (5, "&", "  if (i + 1 < n) a[i] = x | 3;"),
        (5, "1", "  if (i + 2 < n) a[i] = x & 3;"),
        (5, "3", "  if (i + 1 < n) a[i] = x & 4;"),
        (6, "2", "  s->a[i] |= f(3u);  // why"),
        (6, "s->a[i] |= f(2u);", ";  // why"),
    ]


def test_what_is_said_to_change_nothing_can_still_be_changed() -> None:
    possible = {(m.file, m.what) for part in PARTS for m in mutants(part)}
    assert equivalent().keys() <= possible


@pytest.mark.long
@pytest.mark.parametrize("part", PARTS)
def test_most_changed_lines_are_caught(part: str) -> None:
    """At least 95 %. What is known to change nothing is listed, with the reason, and not counted."""
    verdicts = list(judged(part, sample(part, 60, 0), 2))
    survivors = [str(m) for m, verdict in verdicts if verdict == "survived"]
    counts = Counter(verdict for _, verdict in verdicts)
    assert len(survivors) <= 0.05 * (counts["caught"] + counts["survived"]), survivors
