"""The command that runs compute-sanitizer, where there is none."""

import os
import stat
import sys
from pathlib import Path

import pytest

from tests.cuda import sanitize
from tinyrvllm.kernels import shapes
from tinyrvllm.kernels.cases import Case

FAKE = """#!{python}
import sys
tool = sys.argv[2]
assert sys.argv[-1] == tool
print("case rmsnorm")
if tool == "initcheck":
    print("========= Host API memory access error at host access to 0x7f of size 1,040 bytes")
if tool == "racecheck":
    print("========= RACECHECK SUMMARY: {hazards} hazards displayed (0 errors, 0 warnings)")
else:
    print("========= ERROR SUMMARY:", int(tool == "initcheck"), "errors")
if tool != "{dies}":
    print("cases 5, wrong 0")
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
    ("hazards", "dies", "status", "says"),
    [
        (0, "", 0, "racecheck Report(cases=5, wrong=0, kernels=0, copies=0)"),
        (3, "", 1, "racecheck Report(cases=5, wrong=0, kernels=3, copies=0)"),
        (0, "synccheck", 1, "synccheck ended with 0 before its last case"),
    ],
)
def test_the_summary(
    hazards: int, dies: str, status: int, says: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    script = tmp_path / "compute-sanitizer"
    script.write_text(FAKE.format(python=sys.executable, hazards=hazards, dies=dies))
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert sanitize.main([]) == status
    out = capsys.readouterr().out
    assert says in out
    assert "initcheck Report(cases=5, wrong=0, kernels=0, copies=1)" in out


def test_no_sanitizer_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert sanitize.main([]) == 2
    assert capsys.readouterr().err.startswith("error: no compute-sanitizer in the PATH")
