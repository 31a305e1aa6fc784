"""From clang's diagnostics to Apple's manner: what is kept, where it is laid, where the caret stands."""

from pathlib import Path

import pytest

from tinyrvllm.soft.msl import diagnostics
from tinyrvllm.soft.msl.diagnostics import Diagnostic, address_space_errors, numbered, parse, render

OURS = str(Path(diagnostics.__file__).parents[1] / "include" / "msl" / "math.h")


def test_errors_with_the_line_that_the_compiler_saw() -> None:
    found = parse(
        "a.metal:3:7: warning: unused\n"
        "    3 |   warned\n"
        "a.metal:4:9: error: no x\n"
        "    4 |   first\n"
        "      |   ^\n"
        "    5 |   second\n"
        "a.metal:9:1: note: here\n"
        "b.h:1:2: fatal error: gone\n"
        "2 errors generated.\n"
    )
    assert found == [
        Diagnostic("a.metal", 4, 9, "no x", "  first", "note: here\n"),
        Diagnostic("b.h", 1, 2, "gone"),
    ]


def test_an_error_in_our_headers_is_laid_where_the_user_asked_for_it() -> None:
    found = parse(
        f"{OURS}:10:3: error: too few\n"
        "   10 |   ours\n"
        f"{OURS}:12:3: note: in between\n"
        "user.metal:7:5: note: requested here\n"
        "    7 |   theirs\n"
        "user.metal:8:5: note: and here\n"
        "msl_entries:1:1: error: in an entry\n"
        "user.metal:2:2: note: instantiated\n"
    )
    assert found == [
        Diagnostic("user.metal", 7, 5, "too few", "  theirs", "note: and here\n"),
        Diagnostic("user.metal", 2, 2, "in an entry"),
    ]


def test_our_own_shaders_are_a_user_s_files() -> None:
    soft = Path(diagnostics.__file__).parents[1]
    shader = soft.parent / "kernels" / "shaders" / "rmsnorm.metal"
    files = (OURS, str(soft / "cpu" / "entry.h"), "msl_entries", str(shader), "user.metal")
    assert [Diagnostic(f, 1, 1, "no").in_our_files for f in files] == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("user.metal:1:1: error: cannot initialize\n", True),
        (f"{OURS}:1:1: error: cannot initialize\n", False),
        ("user.metal:1:1: error: no matching constructor for 'float4'\n", False),
        ("user.metal:1:1: error: no viable overloaded '='\n", False),
        ("user.metal:1:1: error: cannot bind 'const device Block' here\n", False),
        ("user.metal:1:1: error: cannot bind 'device Block *' here\n", True),
        ("user.metal:1:1: error: cannot bind 'device T' (aka 'device float *') here\n", True),
        ("user.metal:1:1: error: no f\nuser.metal:2:1: note: 1st 'threadgroup Block'\n", False),
        ("user.metal:1:1: error: no f\nuser.metal:2:1: note: substitution failure [with T = int]\n", False),
        ("user.metal:1:1: error: no f\nuser.metal:2:1: note: substitution failure [with T = int]: x\n", True),
    ],
)  # fmt: skip
def test_address_spaces_of_the_user_s_own_code(text: str, kept: bool) -> None:
    assert len(address_space_errors(text)) == kept


def test_an_instance_that_is_over_a_limit_fails_at_its_pipeline() -> None:
    over = "threadgroup memory exceeds the limit"
    note = "in instantiation of function template specialization 'f<4>' requested here"
    assert Diagnostic("a", 1, 1, over, notes=note).at_pipeline
    assert not Diagnostic("a", 1, 1, over, notes=note.replace("f<4>", "msl::g<4>")).at_pipeline
    assert not Diagnostic("a", 1, 1, over).at_pipeline
    assert not Diagnostic("a", 1, 1, "another", notes=note).at_pipeline


SOURCE = "one\n\tfloat4 v = float4(a)  +  float4(b);\n#line 7 \"part.h\"\nseven\n  eight\n"


def test_lines_follow_the_directives_of_a_splice() -> None:
    assert numbered("main", SOURCE) == {
        ("main", 1): "one",
        ("main", 2): "\tfloat4 v = float4(a)  +  float4(b);",
        ("part.h", 7): "seven",
        ("part.h", 8): "  eight",
    }


@pytest.mark.parametrize(
    ("line", "column", "translated", "written_column"),
    [
        (2, 2, "", 2),  # the compiler saw what was written
        (2, 13, "\tfloat4 v = metal::make<float4>(a) + metal::make<float4>(b);", 13),
        (2, 38, "\tfloat4 v = metal::make<float4>(a) + metal::make<float4>(b);", 27),
        (2, 36, "\tfloat4 v = metal::make<float4>(a) + metal::make<float4>(b);", 24),
        (2, 5, "    absent", 2),  # a word that the user did not write: where the line begins
        (2, 90, "short", 37),  # behind the end
        (1, 1, "", 1),
    ],
)
def test_the_caret_stands_under_the_word_s_own_occurrence(
    line: int, column: int, translated: str, written_column: int
) -> None:
    text = render([Diagnostic("main", line, column, "no", translated)], {"main": SOURCE})
    written = SOURCE.splitlines()[line - 1]
    before = "".join("\t" if c == "\t" else " " for c in written[: written_column - 1])
    assert text == f"main:{line}:{written_column}: error: no\n{written}\n{before}^"


def test_several_files_and_what_cannot_be_shown(tmp_path: Path) -> None:
    header = tmp_path / "own.h"
    header.write_text("in a file of its own\n")
    found = [
        Diagnostic("part.h", 8, 3, "static assertion failed due to requirement 'a == b': a is b"),
        Diagnostic("gone.h", 5, 4, "no 'msl_user::f' in (anonymous namespace)::g"),
        Diagnostic(str(header), 1, 4, "static assertion failed: b"),
    ]
    assert render(found, {"main": SOURCE}).splitlines() == [
        "part.h:8:3: error: a is b", "  eight", "  ^",
        "gone.h:5:4: error: no 'f' in g",
        f"{header}:1:4: error: b", "in a file of its own", "   ^",
    ]  # fmt: skip
