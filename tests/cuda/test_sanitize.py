"""The command that runs compute-sanitizer, where there is none."""

import os
import stat
import sys
from pathlib import Path

import pytest

from tests.cuda import sanitize
from tinyrvllm.kernels import shapes
from tinyrvllm.kernels.cases import Case

CASES = len(sanitize.every_case())
COPY = """\
========= Host API memory access error at host access to 0x7f of size 1,040 bytes
=========     {} access to 0x7f on access by cudaMemcpy source
"""
UNWRITTEN, OUTSIDE = COPY.format("Uninitialized"), COPY.format("Out-of-bounds")
# What each tool prints; a run of the command.
CLEAN = {
    "memcheck": f"========= ERROR SUMMARY: 0 errors\ncases {CASES}, wrong 0\n",
    "racecheck": "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
    f"cases {CASES}, wrong 0\n",
    "synccheck": f"cases {CASES}, wrong 0\n========= ERROR SUMMARY: 0 errors\n",
    "initcheck": f"{UNWRITTEN}cases {CASES}, wrong 0\n========= ERROR SUMMARY: 1 errors\n",
}
FAKE = """#!{python}
import sys
assert sys.argv[1] == "--tool" and sys.argv[-2:] == ["--inner", sys.argv[2]]
print({says}[sys.argv[2]], end="")
"""


def test_every_case_is_the_table_and_what_many_cores_get() -> None:
    cases = sanitize.every_case()
    kernels = {c.kernel for c in cases}
    assert kernels == {c.kernel for c in shapes.TABLE} - {"gemm_tensor"}
    many = [c for c in cases if dict(c.shape).get("simdgroups") == 2048 and c.kernel == "matvec"]
    assert len(many) > 50
    spread = [sum(c.kernel == "attend_spread" for c in some) for some in (cases, shapes.TABLE)]
    assert spread[0] > spread[1] > 0


def test_a_wrong_result_is_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = [c for c in sanitize.every_case() if c.kernel == "arrange"]
    assert sanitize.run(cases, "soft") == 0
    assert capsys.readouterr().out.endswith(f"cases {len(cases)}, wrong 0\n")

    def broken(_case: Case, _device: object) -> None:
        raise AssertionError("off by one")

    monkeypatch.setattr(sanitize, "check", broken)
    assert sanitize.run(cases[:2], "soft") == 2
    assert "off by one\ncases 2, wrong 2\n" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform == "win32", reason="Windows runs no scripts by their first line")
@pytest.mark.parametrize(
    ("tool", "old", "new", "found"),
    [
        ("memcheck", "", "", "kernels=0, copies=0"),
        ("racecheck", "0 hazards", "3 hazards", "kernels=3, copies=0"),
        ("initcheck", "1 errors", "2 errors", "kernels=1, copies=1"),
        ("initcheck", UNWRITTEN, OUTSIDE, "kernels=1, copies=0"),
        ("memcheck", "========= ERROR SUMMARY: 0", f"{UNWRITTEN}ERROR SUMMARY: 1", "kernels=1, copies=0"),
        ("synccheck", "wrong 0", "wrong 1", "wrong=1, kernels=0"),
        ("synccheck", f"cases {CASES}", "cases 5", "cases=5, wrong=0"),
        ("synccheck", f"cases {CASES}, wrong 0\n", "", "ended with 0 before its last case"),
    ],
)
def test_the_summary(
    tool: str, old: str, new: str, found: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert old in CLEAN[tool]
    says = CLEAN | {tool: CLEAN[tool].replace(old, new) if old else CLEAN[tool]}
    script = tmp_path / "compute-sanitizer"
    script.write_text(FAKE.format(python=sys.executable, says=says))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert sanitize.main([]) == (1 if old else 0)
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert found in lines[tool]
    assert f"cases={CASES}, wrong=0" in lines["racecheck"]


def test_initcheck_is_sure_of_its_memory() -> None:
    with pytest.raises(AssertionError, match=r"through Card\.allocate"):
        sanitize.run([], "soft", zeroed=False)


def test_no_sanitizer_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert sanitize.main([]) == 2
    assert capsys.readouterr().err.startswith("error: no compute-sanitizer in the PATH")
