"""Simd operations and barriers in functions: the lanes of two calls do not meet.

The values are what a GPU gives, where a function is inlined into each of its calls.
"""

import functools

import numpy as np
import pytest

from tests.soft.stdlib import HEADER
from tinyrvllm.soft.cpu.execute import Dispatch, run
from tinyrvllm.soft.cpu.library import SoftLibrary, compile_library
from tinyrvllm.soft.cpu.report import Report
from tinyrvllm.soft.msl import MSLError

LANES = np.arange(32)
BOTH_SIDES = np.where(LANES < 8, 8, 48)  # 8 lanes add up ones, 24 twos

# What stands before the kernel, and the kernel's statements: they set `r`, given `i`, the lane.
CASES: dict[str, tuple[str, str, np.ndarray]] = {
    "ternary": (
        "uint total(uint v) { return simd_sum(v); }",
        "r = i < 8 ? total(1) : total(2);",
        BOTH_SIDES,
    ),
    "if_else": (
        "uint total(uint v) { return simd_sum(v); }",
        "if (i < 8) r = total(1);\n else r = total(2);",
        BOTH_SIDES,
    ),
    "switch": (
        "uint total(uint v);\nuint total(uint v) { return simd_sum(v); }",
        ("switch (i / 8) { case 0: r = total(1); break; case 1: r = total(2); break;\n"
        "default: r = total(3); }"),
        np.repeat([8, 16, 48, 48], 8),
    ),
    "two_levels": (
        ("uint total(uint v) { return simd_sum(v); }\n"
        "uint outer(uint v) { return v < 3 ? total(v) : total(v + 10); }"),
        "r = i < 8 ? outer(1) : i < 16 ? outer(2) : outer(3);",
        np.repeat([8, 16, 13 * 16, 13 * 16], 8),
    ),
    "middle_level_differs": (
        ("uint total(uint v) { return simd_sum(v); }\n"
        "uint left(uint v) { return total(v); }\nuint right(uint v) { return total(v); }"),
        "r = i < 8 ? left(1) : right(2);",
        BOTH_SIDES,
    ),
    "lanes_leave_a_loop": (
        "uint total(uint v) { return simd_sum(v); }",
        "for (uint s = 0; s <= i; s++) r += total(1);",
        np.cumsum(32 - LANES),
    ),
    "meets_again_behind_a_loop": (  # though the function stands before the loop in the source
        "uint total(uint v) { return simd_sum(v); }",
        "for (uint s = 0; s <= i; s++) r += simd_sum(1u);\n r = total(1);",
        np.full(32, 32),
    ),
    "unrolled_loop": (
        "uint total(uint v) { return simd_sum(v); }",
        "#pragma unroll\n for (uint s = 0; s < 4; s++) { if (s > i) break; r += total(1); }",
        np.array([32, 63, 93, *[122] * 29]),
    ),
    "loop_in_a_function": (
        ("uint rounds(uint n) { uint r = 0; for (uint s = 0; s <= n; s++) r += simd_sum(1u);\n"
        "return r * 100 + simd_sum(1u); }"),
        "r = i < 2 ? rounds(i) : rounds(1);",
        np.array([202, 302, *[6030] * 30]),
    ),
    "template": (
        "template <typename T, int N> T total(T v) { return simd_sum(v) + N; }",
        "r = i < 8 ? total<uint, 0>(1) : total<uint, 0>(2);",
        BOTH_SIDES,
    ),
    "overloads": (
        "uint total(uint v) { return simd_sum(v); }\nint total(int v) { return simd_sum(v); }",
        "r = i < 8 ? total(1) : total(2);",
        BOTH_SIDES,
    ),
    "overload_of_an_operation": (
        ("struct Pair { uint a, b; };\n"
        "Pair simd_sum(Pair p) { return {simd_sum(p.a), simd_sum(p.b)}; }"),
        "if (i < 8) r = simd_sum(Pair{1, 0}).a;\n else r = simd_sum(Pair{1, 2}).b;",
        BOTH_SIDES,
    ),
    "method": (
        ("struct Adder { uint more; uint total(uint v) const { return simd_sum(v + more); }\n"
        "static uint plain(uint v) { return simd_sum(v); } };"),
        "Adder adder{1}; r = i < 8 ? adder.total(0) : i < 16 ? adder.total(2) : Adder::plain(4);",
        np.repeat([8, 24, 64, 64], 8),
    ),
    "constructor_and_call_operator": (
        (
            "struct Sum { uint r; Sum(uint v) : r(0) { r = simd_sum(v); }\n"
            "constexpr uint operator()(uint v) const { return simd_sum(v); } };"
        ),
        "r = i < 8 ? Sum(1).r : i < 16 ? Sum(2).r : 0; Sum s(0); r += i < 24 ? s(0) : s(1);",
        np.repeat([8, 16, 0, 8], 8),
    ),
    "constructor_that_initializes_by_braces": (
        "struct Sum { uint s, r; Sum(uint v) : s{0}, r(0) { r = simd_sum(v); } };",
        "r = i < 8 ? Sum(1).r : Sum(2).r;",
        BOTH_SIDES,
    ),
    "lambda": (
        "",
        "auto total = [&](uint v) { return simd_sum(v); };\n r = i < 8 ? total(1) : total(2);",
        BOTH_SIDES,
    ),
    "macro": (
        "uint total(uint v) { return simd_sum(v); }\n#define BOTH(c, a, b) c ? total(a) : total(b)",
        "r = BOTH(i < 8, 1, 2);",
        BOTH_SIDES,
    ),
    "no_arguments": (
        "uint active(void) { return popcount((uint)(simd_vote::vote_t)simd_active_threads_mask()); }",
        "r = i < 8 ? active() : active() * 2;",
        BOTH_SIDES,
    ),
    "one_call_more": (  # the second operation is one and the same for all lanes
        "uint total(uint v) { return simd_sum(v); }",
        "uint x = i < 8 ? total(1) : 2; r = total(x);",
        np.full(32, 8 * 8 + 24 * 2),
    ),
    "scans_shuffles_votes": (
        ("uint mixed(uint i) { return simd_prefix_inclusive_sum(1u) + 100 * simd_broadcast_first(i)\n"
        "+ 10000 * (uint)simd_any(i == 9); }"),
        "r = i < 8 ? mixed(i) : mixed(i);",
        np.where(LANES < 8, LANES + 1, LANES - 7 + 800 + 10000),
    ),
    "quads": (
        "uint total(uint v) { return quad_sum(v); }",
        "r = i % 4 < 1 ? total(1) : total(2);",
        np.where(LANES % 4 < 1, 1, 6),
    ),
    "simdgroup_barrier": (  # a barrier on each side, then one for all
        "void meet() { simdgroup_barrier(mem_flags::mem_none); }",
        "if (i < 8) meet();\n else meet();\n r = simd_sum(1u);",
        np.full(32, 32),
    ),
    "returns_from_a_function": (
        "uint total(uint v) { if (v == 1) return simd_sum(v); return simd_sum(v); }",
        "r = total(i < 8 ? 1 : 2); r += 100 * total(1);",
        BOTH_SIDES + 3200,
    ),
    "function_as_a_value": (
        ("uint total(uint v) { return simd_sum(v); }\n"
        "template <typename F> uint apply(F f, uint v) { return f(v); }"),
        "r = i < 8 ? apply(total, 1) : apply(total, 2);",
        BOTH_SIDES,
    ),
    "unnamed_lambda": (
        "template <typename F> uint apply(F f, uint v) { return f(v); }",
        ("r = i < 8 ? apply([](uint v) { return simd_sum(v); }, 1)\n"
        " : apply([](uint v) { return simd_sum(v); }, 2);"),
        BOTH_SIDES,
    ),
    "value_and_call": (  # a function that is a value somewhere loses its place everywhere
        ("uint total(uint v) { return simd_sum(v); }\n"
        "template <typename F> uint apply(F f, uint v) { return f(v); }"),
        "r = i < 8 ? total(1) : total(2); r += apply(total, 100);",
        BOTH_SIDES + 3200,
    ),
    "parameter_called_twice": (
        ("uint total(uint v) { return simd_sum(v); }\n"
        "template <typename F> uint twice(F f, uint v) { return v < 2 ? f(v) : f(v); }"),
        "r = twice(total, i < 8 ? 1 : 2);",
        BOTH_SIDES,
    ),
    "place_of_a_value": (  # its text stands behind the operation that follows its call
        ("template <typename F> uint outer(F f, uint i) {\n"
        "uint x = 2; if (i < 8) x = f(1u); return simd_sum(x); }\n"
        "uint total(uint v) { return simd_sum(v); }"),
        "r = outer(total, i);",
        np.full(32, 8 * 8 + 24 * 2),
    ),
    "function_in_a_variable": (
        "uint total(uint v) { return simd_sum(v); }",
        "auto f = total; r = i < 8 ? f(1) : f(2);",
        BOTH_SIDES,
    ),
    "lambda_that_is_returned": (
        "auto make() { return [](uint v) { return simd_sum(v); }; }",
        "auto f = make(); r = i < 8 ? f(1) : f(2);",
        BOTH_SIDES,
    ),
    "functor_of_a_template_type": (
        ("struct Sum { template <typename T> T operator()(T v) const { return simd_sum(v); } };\n"
        "template <typename Op, typename T> T with(T v) { Op op; return op(v); }\n"
        "template <typename Op, typename T> T made(T v) { return Op()(v); }\n"
        "template <typename Op> struct Kept { Op op; uint run(uint v) { return op(v); } };"),
        ("Kept<Sum> kept; r = i < 4 ? with<Sum>(1u) : i < 8 ? with<Sum>(2u) : i < 12\n"
        "? made<Sum>(3u) : i < 16 ? made<Sum>(4u) : i < 24 ? kept.run(5u) : kept.run(6u);"),
        np.repeat([4, 8, 12, 16, 40, 40, 48, 48], 4),
    ),
    "constructor_of_a_template_type": (
        ("struct Sum { uint r; Sum(uint v) { r = simd_sum(v); } };\n"
        "template <typename S> uint with(uint v) { S s(v); return s.r; }"),
        "r = i < 8 ? with<Sum>(1) : with<Sum>(2);",
        BOTH_SIDES,
    ),
    "function_as_template_argument": (
        ("uint total(uint v) { return simd_sum(v); }\n"
        "template <uint F(uint)> uint apply(uint v) { return F(v); }\n"
        "template <uint (*F)(uint)> struct Kept { uint run(uint v) { return F(v); } };"),
        "Kept<total> k; r = i < 8 ? apply<total>(1) : i < 16 ? apply<total>(2) : k.run(3);",
        np.repeat([8, 16, 48, 48], 8),
    ),
    "in_an_argument": (
        "",
        "r = simd_sum(i < 8 ? simd_sum(1u) : 2u);",
        np.full(32, 8 * 8 + 24 * 2),
    ),
    "in_an_argument_of_a_function": (
        "uint total(uint v) { return simd_sum(v); }\nuint some(uint v) { return v > 1 ? total(v) : v; }",
        "r = total(\n(i < 8 ? total(1)\n: 2)); r += simd_sum(1u) + total(some(i < 8 ? 1 : 2));",
        np.full(32, 8 * 8 + 24 * 2 + 32 + 8 + 24 * 48),
    ),
    "in_an_argument_of_a_value": (
        ("uint total(uint v) { return simd_sum(v); }\n"
        "template <typename F> uint apply(F f, uint i) { return f(i < 8 ? f(1u) : 2u); }"),
        "r = apply(total, i);",
        np.full(32, 8 * 8 + 24 * 2),
    ),
    "variables_of_the_same_name": (
        ("uint total(uint v) { return simd_sum(v); }\n"
        "uint other(uint v) { uint total(v + 0); total += 1; return max(total, 0u); }"),
        "uint x = other(0); r = i < 8 ? total(x) : total(2);",
        BOTH_SIDES,
    ),
}


@functools.cache
def library(name: str, check: bool) -> SoftLibrary:
    """A source of its own for each case: names of functions count for a whole source."""
    before, code, _ = CASES[name]
    source = (
        f"{HEADER}{before}\nkernel void in_{name}(device uint *out [[buffer(0)]],\n"
        "uint i [[thread_index_in_simdgroup]], uint at [[thread_position_in_grid]]) {\n"
        f"uint r = 0;\n{code}\nout[at] = r;\n}}\n"
    )
    return compile_library(source, filename=f"{name}.metal", check=check)


def dispatch(
    made: SoftLibrary, name: str, out: np.ndarray, group: int, threads: int
) -> list[Report]:
    bound = {0: (out.ctypes.data, out.nbytes)}
    return run([Dispatch(made.kernel(name), bound, (len(out), 1, 1), (group, 1, 1))], threads)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("check", [False, True], ids=["normal", "checking"])
@pytest.mark.parametrize("name", CASES)
def test_lanes_of_two_calls_do_not_meet(name: str, check: bool, threads: int) -> None:
    out = np.zeros(256, np.uint32)
    reports = dispatch(library(name, check), f"in_{name}", out, 64, threads)
    for simdgroup in out.reshape(8, 32):
        np.testing.assert_array_equal(simdgroup, CASES[name][2])
    undefined = name == "simdgroup_barrier" and check  # Metal wants all lanes there
    kinds = {r.kind for r in reports if not r.warning}
    assert kinds == ({"simd-divergence"} if undefined else set()), "\n".join(map(str, reports))


BARRIERS = """
static void meet() { threadgroup_barrier(mem_flags::mem_threadgroup); }
kernel void by_simdgroups(device uint *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup uint tile[64];
  tile[i] = i;
  if (i < 32)
    meet();
  else
    meet();
  out[i] = tile[63 - i];
}
kernel void by_lanes(device uint *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  if (i < 8)
    meet();
  else
    meet();
  out[i] = simd_sum(1u);
}
kernel void rounds(device uint *out [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup uint tile[64];
  uint total = 0;
  for (uint k = 0; k < 4; k++) {
    tile[i] = i + k;
    meet();
    total += tile[63 - i];
    meet();
  }
  out[i] = total;
}
"""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("check", [False, True])
def test_barriers_in_functions(check: bool, threads: int) -> None:
    barriers = compile_library(HEADER + BARRIERS, filename="barriers.metal", check=check)
    line = (HEADER + BARRIERS).split("\n").index(BARRIERS.split("\n")[1]) + 1
    i = np.arange(64)
    expected = {"by_simdgroups": 63 - i, "by_lanes": 0 * i + 32, "rounds": 4 * (63 - i) + 6}
    for name, values in expected.items():
        out = np.zeros(64, np.uint32)
        reports = dispatch(barriers, name, out, 64, threads)
        np.testing.assert_array_equal(out, values)
        found = [(r.kind, r.file, r.line) for r in reports if not r.warning]
        diverges = check and name != "rounds"
        assert found == [("barrier-divergence", "barriers.metal", line)] * diverges, reports


@pytest.mark.parametrize(
    "source",
    [
        "struct Add { uint x; uint operator+(uint v) const { return simd_sum(v + x); } };",
        "struct Sum { uint r; Sum(uint v) : r(simd_sum(v)) {} };",
        ("kernel void k(device float *p, uint i [[thread_index_in_simdgroup]]) {\n"
        "simdgroup_float8x8 m; simdgroup_load(m, p + (i < 8 ? simd_sum(1u) : 2u)); }"),
    ],
    ids=["operator", "initializer", "argument_of_a_matrix_operation"],
)
def test_what_would_lose_its_place_is_refused(source: str) -> None:
    with pytest.raises(MSLError, match="not supported by the software device"):
        compile_library(HEADER + source, filename="a.metal")
