"""What the front end writes for what it reads, line by line, and what it tells a host.

translations.txt has Metal and behind `->` the C++ of it (`|` is a line break) or the error. No
compiler runs here: what the C++ does is the business of the other tests. `follow` before a source:
as for a thread that is followed. After a change that is meant, `python -m tests.soft.test_front_end_translation` writes the file anew, to be read.
"""

import math
from pathlib import Path

import pytest

from tinyrvllm.soft.msl import MSLError, call_paths, qualifiers
from tinyrvllm.soft.msl.arithmetic import integer
from tinyrvllm.soft.msl.calls import Level
from tinyrvllm.soft.msl.constants import FunctionConstant, as_macros
from tinyrvllm.soft.msl.kernels import Param
from tinyrvllm.soft.msl.preprocess import DEFINES, preprocess
from tinyrvllm.soft.msl.tokens import Tokens
from tinyrvllm.soft.msl.translate import Unit, translate

FILE = Path(__file__).with_name("translations.txt")
LINES = FILE.read_text(encoding="utf-8").splitlines()
SOURCES = [line for line in LINES if line[:1] not in ("", "#", " ")]


def translated(source: str) -> str:
    follow = source.startswith("follow ")
    try:
        code = translate(source.removeprefix("follow "), "t", follow).code
        return "|".join(code.split("\n"))
    except MSLError as error:
        return str(error)


@pytest.mark.parametrize("source", SOURCES)
def test_translations(source: str) -> None:
    expected = LINES[LINES.index(source) + 1].removeprefix("  -> ")
    assert translated(source) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0x1F", 31), ("0XaL", 10), ("10u", 10), ("7UL", 7), ("(100 + 3)", 103), ("7 / 2", 3), ("7 / 2 * 2", 6), ("1 << 4", 16),
        ("N * 32", 128), ("M", 8), ("K", None), ("a", None), ("2.5", None), ("1 +", None), ("1 / 0", None),
        ("7 % 4 - 2", 1), ("(3 > 2) & 1 | 4", 5), ("()", None),
    ],
)  # fmt: skip
def test_arithmetic(text: str, value: int | None) -> None:
    assert integer(text, {"N": "4", "M": "(N + 4)", "K": "K"}) == value


def test_a_parameter_that_was_an_array_is_a_pointer_to_later_passes() -> None:
    tokens = Tokens("f(device float a[4])", "t")
    qualifiers.array_parameters(tokens)
    assert [(t.text, t.kind) for t in tokens.list if t.text] == [
        ("f", "name"), ("(", "sign"), ("device", "name"), ("float", "name"), ("*", "sign"),
        ("a", "name"), (")", "sign"),
    ]  # fmt: skip


def test_values_of_function_constants_are_exact() -> None:
    given = {1: 2.5, 2: -3, 3: True, 4: math.nan, 5: math.inf, 6: -math.inf, 7: 0.1}
    values = ["0", "(0x1.4000000000000p+1f)", "-3", "1", "NAN", "(INFINITY)", "(-INFINITY)"]
    expected = "".join(
        f"#define MSL_FC_{k} {text}\n#define MSL_FC_DEFINED_{k} {int(k > 0)}\n"
        for k, text in enumerate([*values, "(0x1.999999999999ap-4f)"])
    )
    assert as_macros(range(8), given) == expected


def test_tokens_know_brackets_and_places() -> None:
    tokens = Tokens('a [b [c]] (d {e}) n<f(g > h)> [[i]]\n# 7 "x.h" 3\n  j\n/* \n */ k', "t")
    words = [t.text for t in tokens.list]
    assert words[5] == "]]" and [tokens.after(i) for i in (1, 6, 8, 13)] == [6, 12, 11, 21]
    assert [tokens.opening(i) for i in (5, 10, 11)] == [1, 8, 6]
    assert [tokens.place(words.index(x)) for x in "ajk"] == [(1, 1), (7, 3), (9, 5)]
    assert (tokens[-1], tokens[99], tokens.kind(-1), tokens.kind(99)) == ("", "", "", "")
    assert tokens.text(0, 6) == "a[b[c]]" and tokens.names(0, 4) == {"a", "b"}
    nested = Tokens("x[ [[1]b] ] + y[ [ [z]] ]", "t")
    assert [nested.after(1), nested.after(10)] == [8, 16]
    assert [nested.opening(i) for i in (7, 15)] == [1, 10]
    assert [nested.find(0, "+("), nested.find(9, "[(") , nested.find(9, "(")] == [8, 10, 16]
    assert Tokens("a<b<c>, (d) < 2, 1 < 2, operator<, d> e", "t").after(1) == 22
    assert Tokens("(q)", "t").opening(2) == 0 and not Tokens("operator<a", "t").opens_template(1)
    assert Tokens("(T x_ y1 _z)", "t").text(0, 6) == "(T x_ y1 _z)"
    with pytest.raises(MSLError, match=r"t:1:3: error: expected '\]' to match this '\['"):
        Tokens("a [b", "t").after(1)
    with pytest.raises(MSLError, match=r"t:1:3: error: extraneous '\)'"):
        Tokens("a ) b", "t").opening(1)
    with pytest.raises(MSLError, match=r"^error: nothing"):
        raise Tokens("", "t").error(0, "nothing")


def test_lines_and_columns_of_tokens() -> None:
    tokens = Tokens('a\n  b /* \n\n */ c\n#line 7 "x.h"\nd\n# 9\n   e\n#pragma unroll (N)\nf # 3 "y.h"\ng', "t")
    places = [(t.text, t.file, t.line, t.column) for t in tokens.list if t.kind == "name"]
    assert places[:6] == [
        ("a", "t", 1, 1), ("b", "t", 2, 3), ("c", "t", 4, 5), ("d", "x.h", 7, 1), ("e", "x.h", 9, 4), ("f", "x.h", 11, 1),
    ]  # fmt: skip


def test_what_the_preprocessor_is_asked() -> None:
    asked = preprocess("text\n", 'a\\b"c', lambda *given: repr(given), [Path("i")], ["N=1"])
    assert asked == repr(("#line 1 \"a/b'c\"\ntext\n", [Path("i")], [*DEFINES, "N=1"]))


def test_places_are_numbered_as_in_runtime_h() -> None:
    text = (Path(call_paths.__file__).parents[1] / "cpu" / "runtime.h").read_text()
    assert f"constexpr uint COLUMNS = {call_paths.COLUMNS};" in text


def unit(source: str) -> Unit:
    return translate(source, "t")


def test_what_a_followed_thread_notes() -> None:
    found = translate(
        "void f() {\n  x = 1; float y = 2, z;\n  a[i + 1] = y;\n  g();\n  while (x) p->q.r[2] += 1;\n}", "t", True
    )
    assert [(step.file, step.line, step.label) for step in found.steps] == [
        ("t", 2, "x"), ("t", 2, "y"), ("t", 3, "a[i+1]"), ("t", 4, ""), ("t", 5, ""), ("t", 5, "p->q.r[2]"),
    ]  # fmt: skip
    assert translate("void f() { x = 1; }", "t").steps == ()


def test_instances_of_a_template() -> None:
    found = unit(
        'template <typename T, int N = 4, typename U = vec<T, 2>> [[host_name("x")]]\n'
        "[[max_total_threads_per_threadgroup(N * 0x20)]] kernel void f(device T *a) { }\n"
        'template [[host_name("f_half")]] kernel void f<half, (8), vec<half, 2>>(device half *);\n'
        "template kernel void f<float>(device float *);\n"
        'template [[host_name("d")]]\n kernel void f(device int *);\n'
        "template <typename T> [[max_total_threads_per_threadgroup(64)]] kernel void g(device T *a) { }\n"
        "template kernel void g(device int *);\n"
        "template <typename T, int N = 3> [[max_total_threads_per_threadgroup(N * 32)]]\n"
        "kernel void h(device T *a) { } template kernel void h<int>(device int *);\n"
        "template <int N> [[max_total_threads_per_threadgroup(N)]] kernel\nvoid i(device int *a) { }\n"
        "template kernel void i<12>(device int *);\n"
        "[[max_total_threads_per_threadgroup(32)]] kernel void\nj\n(device int *a) { }\n"
    ).kernels
    kernels = [k.kernel for k in found.values()]
    assert [(k.name, k.function, k.max_total_threads, k.place) for k in kernels] == [
        ("f_half", "f<half,(8),vec<half,2>>", 256, ("t", 3)),
        ("f<float>", "f<float>", 128, ("t", 4)),
        ("d", "*msl_instance88", None, ("t", 6)),
        ("g", "*msl_instance126", 64, ("t", 8)),
        ("h<int>", "h<int>", 96, ("t", 10)),
        ("i<12>", "i<12>", 12, ("t", 13)),
        ("j", "j", 32, ("t", 15)),
    ]
    assert [k.base for k in kernels] == ["f", "f", "f", "g", "h", "i", "j"]


def test_there_are_31_slots_for_buffers() -> None:
    def kernel(count: int) -> str:
        return f"kernel void k({', '.join(f'device int *b{i}' for i in range(count))}) {{ }}"

    assert [p.index for p in unit(kernel(31)).kernels["k"].kernel.params] == list(range(31))
    with pytest.raises(MSLError, match="must be between 0 and 30"):
        unit(kernel(32))


def test_parameters() -> None:
    found = unit(
        "struct In { device int *p; }; struct Out { In in; }; struct Plain { int a; };\n"
        "struct Ref { constant int &r; }; struct Local { thread int *q; }; struct Inner { constant int n = 1; };\n"
        "constant bool on [[function_constant(1)]];\n"
        "kernel void k(constant Out &o [[buffer(1)]], device float *q [[buffer(0)]],\n"
        "  constant Plain *p [[buffer(0), function_constant(on)]], constant Ref &r, device Local *l, device Inner *n,\n"
        "  threadgroup int *t [[threadgroup(3)]], threadgroup int *u, threadgroup int &v,\n"
        "  const device int *c, uint2 g [[thread_position_in_grid]]) { }\n"
    ).kernels["k"]
    assert found.kernel.params == (
        Param("o", "buffer", 1, "read", "constant Out&", holds_addresses=True),
        Param("q", "buffer", 0, "read_write", "device float*"),
        Param("p", "buffer", 0, "read", "constant Plain*", "on"),
        Param("r", "buffer", 2, "read", "constant Ref&", holds_addresses=True),
        Param("l", "buffer", 3, "read_write", "device Local*"),
        Param("n", "buffer", 4, "read_write", "device Inner*"),
        Param("t", "threadgroup", 3, None, "threadgroup int*"),
        Param("u", "threadgroup", 0, None, "threadgroup int*"),
        Param("v", "threadgroup", 1, None, "threadgroup int&"),
        Param("c", "buffer", 5, "read", "const device int*"),
        Param("g", "thread_position_in_grid", None, None, "uint2"),
    )


def test_constants_that_a_kernel_can_reach() -> None:
    source = (
        "constant int a [[function_constant(1)]]; constant int b [[function_constant(2)]];\n"
        "constant int c [[function_constant(3)]]; constant int d = c + 1;\n"
        "constant bool e [[function_constant(4)]]; constant int f = is_function_constant_defined(e);\n"
        "int helper(int y) { return b + y; } kernel void k(device int *x) { helper(x[0]); }\n"
        "kernel void l(device int *x) { (d); (a); } kernel void m(device int *x) { f; }\n"
        "constant int z [[function_constant(5)]]; struct S { int g() { return z; } };\n"
        "kernel void n(device S *s) { s->g(); }\n"
    )
    found = unit(source)
    reached = {name: list(k.constants) for name, k in found.kernels.items()}
    assert reached == {"k": [2], "l": [1, 3], "m": [4], "n": [5]}
    assert found.constants[4] == FunctionConstant("e", "bool", False)
    assert found.constants[1] == FunctionConstant("a", "int", True)


def test_how_a_kernel_must_run_hangs_on_its_parameters_and_has_a_number_of_runtime_h() -> None:
    found = unit("struct S { int f() { return simd_sum(1); } }; kernel void k(device S *s) { s->f(); }")
    assert found.kernels["k"].level == Level.SIMDGROUPS
    assert [int(level) for level in Level] == [0, 1, 2]


@pytest.mark.parametrize(
    ("body", "level", "matrices"),
    [
        ("a[0] = 1;", Level.LOOP, False),
        ("simd_sum(1);", Level.SIMDGROUPS, False),
        ("quad_max(1);", Level.SIMDGROUPS, False),
        ("helper();", Level.SIMDGROUPS, False),
        ('os_log_default.log_info("x");', Level.SIMDGROUPS, False),
        ("threadgroup_barrier(mem_flags::mem_none);", Level.THREADGROUP, False),
        ("threadgroup float s[4];", Level.THREADGROUP, False),
        ("simdgroup_load(m, a);", Level.SIMDGROUPS, True),
        ("simdgroup_float8x8 m;", Level.SIMDGROUPS, True),
        ("make_filled_simdgroup_matrix<float>(1);", Level.SIMDGROUPS, True),
        ("op.run(a, b); matmul2d<x> op;", Level.THREADGROUP, False),
    ],
)
def test_how_a_kernel_must_run(body: str, level: Level, matrices: bool) -> None:
    source = "void helper() { simd_sum(1); } kernel void k(device float *a) { " + body + " }"
    found = unit(source)
    assert (found.kernels["k"].level, found.kernels["k"].matrices) == (level, matrices)
    assert not found.per_lane and unit(source + "auto x = m.thread_elements();").per_lane


if __name__ == "__main__":
    rows = (line for line in LINES if not line.startswith("  ->"))
    new = (f"{x}\n  -> {translated(x)}" if x in SOURCES else x for x in rows)
    FILE.write_text("\n".join(new) + "\n", encoding="utf-8")
