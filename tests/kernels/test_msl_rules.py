"""Every shader is plain MSL; and the linter that says so sees what is not."""

import re
from pathlib import Path

import pytest

from tests.kernels.msl_rules import RULES, SHADERS, lint, names
from tests.kernels.msl_text import declared, kernels, source
from tinyrvllm.mtl.library import splice

GOOD = """\
#include <metal_stdlib>
using namespace metal;
#define UNROLL _Pragma("clang loop unroll(full)")
constant uint KIND [[function_constant(0)]];
constant bool PLAIN = KIND == 1;
constant constexpr uint WIDTH = 32, HALF = WIDTH / 2;
struct ScaleArgs { uint count; float factor; };
inline float twice(thread const float4 &v, ushort i) { return 2.0f * v[i] + v.x; }
[[max_total_threads_per_threadgroup(32)]]
kernel void scale(device float *x [[buffer(0)]], constant ScaleArgs &a [[buffer(1)]],
                  uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float tile[WIDTH];
    alignas(16) threadgroup half halves[4], others[4];
    float4 v = float4(x[lane]), w = fma(v, v, v);
    *(threadgroup half4 *)(lane < HALF ? halves : others) = half4(v);
    tile[lane] = PLAIN ? simd_sum(twice(w, 1)) : as_type<float>(a.count);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane < HALF) x[lane] = tile[lane] * a.factor;
}
"""
BAD = {  # rule -> changes of GOOD, each of which it must see
    "known_names": [
        ("fma(", "erf("),
        ("simd_sum(", "simd_sum_all("),
        ("tile[lane] * a.factor", "tile[lane] * M_PI_F"),
        ("v.x", "v.xyzq"),
        ("thread_index_in_simdgroup", "thread_position_in_simdgroup"),
        ("float4(x[lane])", "float4(x[unheard_of])"),
        ("simd_sum(", "get_capacity("),  # Metal 4's
        ("#include <metal_stdlib>", "#include <metal_stdlib>\n#ifdef _WIN32\n#endif"),
    ],
    "words_of_cpp": [
        ("float4 v", "double d = 0.0f; float4 v"),
        ("float4 v", "auto f = [&](float y) { return y; }; float4 v"),
        ("float4 v", "auto [p, q] = v; float4 v"),
        ("if (lane", "if constexpr (lane"),
        ("struct ScaleArgs {", "struct ScaleArgs : Base {"),
        ("using namespace metal;", "using namespace metal; using std::min;"),
        ("float4 v", "size_t n = 3; float4 v"),
        ("float4 v", "bfloat b; float4 v"),
        ("lane < HALF", "(lane <=> HALF) < 0"),
        ("float4 v", "goto end; float4 v"),
        ("inline float twice", "template <typename T> concept C = true; inline float twice"),
    ],
    "literals": [("2.0f *", "2.0 *"), ("2.0f *", "2. *"), ("2.0f *", "1e3 *")],
    "spaces_of_pointers": [
        ("thread const float4 &v", "const float4 &v"),
        ("thread const float4 &v", "thread device const float4 &v"),
        ("thread const float4 &v, ", "device float **p, thread const float4 &v, "),
        ("float4 v =", "float *p = 0; float4 v ="),
        ("thread const float4 &v", "ScaleArgs &v"),
    ],
    "threadgroup_variables": [
        ("{ return 2.0f", "{ threadgroup float s[4]; return 2.0f"),
        ("{ return 2.0f", "{ alignas(16) threadgroup float s[4]; return 2.0f"),
        ("tile[WIDTH];", "tile[WIDTH] = {};"),
    ],
    "threadgroup_alignment": [
        ("alignas(16) threadgroup", "threadgroup"),
        ("? halves : others", "? (threadgroup half *)tile : others"),
        ("tile[WIDTH];", "tile[2][WIDTH]; load(tile[1]);"),
    ],
    "program_scope": [
        ("struct ScaleArgs", "float global = 1.0f;\nstruct ScaleArgs"),
        ("struct ScaleArgs", "constant float empty;\nstruct ScaleArgs"),
        ("struct ScaleArgs", "constant uint OTHER [[function_constant(0)]];\nstruct ScaleArgs"),
        ("constant uint KIND", "constant float4x4 KIND"),
    ],
    "kernel_heads": [
        ("kernel void", "kernel float"),
        ("[[max_total_threads_per_threadgroup(32)]]", ""),
        ("uint lane [[thread_index_in_simdgroup]]", "uint lane"),
        ("[[buffer(1)]]", "[[buffer(2)]]"),
        ("uint lane [[", "float lane [["),
        ("uint lane [[", "ushort s [[simdgroup_index_in_threadgroup]], uint lane [["),
        ("constant ScaleArgs &a", "constant ScaleArgs a"),
        (
            "uint lane [[",
            "uint2 p [[thread_position_in_grid]], uint g [[threadgroup_position_in_grid]], uint lane [[",
        ),
    ],
    "argument_structs": [("float factor;", "half factor;"), ("uint count;", "uint2 count;")],
    "recursion": [("return 2.0f * v[i]", "return twice(v, i) * v[i]")],
    "unrolling": [("clang loop", "omp loop"), ("using", "#pragma unroll\nusing")],
}  # fmt: skip


@pytest.mark.parametrize("path", sorted(SHADERS.glob("*.metal")), ids=lambda path: path.name)
def test_shaders(path: Path) -> None:
    assert lint(splice(path)) == []


@pytest.mark.parametrize("path", sorted(SHADERS.iterdir()), ids=lambda path: path.name)
def test_headers_and_lines(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("// "), "the header explains the file"
    assert max(map(len, text.splitlines())) <= 100


def test_every_kernel_is_seen() -> None:
    for path in SHADERS.glob("*.metal"):
        written = re.findall(r"^kernel void (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        seen = [head[2] for head, _, _ in kernels(source(splice(path)))]
        assert written and seen == written, path.name


def test_the_table_holds_what_is_used_and_no_more() -> None:
    used = set()
    for path in SHADERS.glob("*.metal"):
        used |= set(re.findall(r"\w+", source(splice(path)).code))
    assert set(names()) - used <= {"while"}  # a word of C++ that comes and goes


def test_a_good_shader_has_no_finding() -> None:
    assert lint(GOOD) == []
    assert {"WIDTH", "HALF", "v", "w", "twice", "factor"} <= declared(GOOD)


@pytest.mark.parametrize(
    ("rule", "change"), [(rule, change) for rule, changes in BAD.items() for change in changes]
)
def test_each_rule_sees_what_it_is_for(rule: str, change: tuple[str, str]) -> None:
    assert change[0] in GOOD
    found = lint(GOOD.replace(*change))
    assert any(f"[{rule}:" in finding for finding in found), found


def test_every_rule_has_a_bad_example() -> None:
    assert {rule.__name__ for rule in RULES} == set(BAD)
