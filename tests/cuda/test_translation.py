"""Our shaders as NVRTC takes them. It needs no GPU, only its wheel."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cuda import variants
from tinyrvllm.kernels import shapes
from tinyrvllm.mtl.library import PRELUDE, SHADERS, splice
from tinyrvllm.soft.cuda import compiler
from tinyrvllm.soft.cuda.library import CudaLibrary, compile_library
from tinyrvllm.soft.cuda.preprocess import run as preprocess
from tinyrvllm.soft.cuda.translate import for_nvrtc
from tinyrvllm.soft.msl import MSLError
from tinyrvllm.soft.msl.preprocess import preprocess as expanded
from tinyrvllm.soft.msl.translate import translate

ARCHITECTURES = ("sm_75", "sm_90")  # the oldest that CUDA 13 knows, and one with TF32
STEMS = sorted(p.stem for p in SHADERS.glob("*.metal") if p.stem not in variants.NOT_HERE)
VARIANTS = variants.of(shapes.TABLE)
# What the machine code hangs on most: tensor cores, packed loads, shuffles, threadgroup memory.
SHORT = [
    (next(v for v in VARIANTS if v[1] == kernel), architecture)
    for architecture, kernels in (
        ("sm_90", ("ksplit_half", "top_k", "rmsnorm", "matvec")), ("sm_75", ("gemm_float", "embed"))
    )
    for kernel in kernels
]  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def nvrtc() -> None:
    pytest.importorskip("cuda.bindings", reason="the [cuda] extra, with NVRTC, is not installed")
    compiler.nvrtc()  # installed and not to be loaded is a failure


@pytest.fixture(scope="session", autouse=True)
def empty_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINYRVLLM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def library(stem: str, architecture: str = "sm_90") -> CudaLibrary:
    source = PRELUDE + splice(SHADERS / f"{stem}.metal")
    return compile_library(source, filename="program_source", architecture=architecture)


def machine_code(variant: variants.Variant, architecture: str) -> bytes:
    stem, kernel, constants = variant
    shader = library(stem, architecture)
    indices = {c.name: i for i, c in shader.functions[kernel].function_constants.items()}
    return shader.code(kernel, {indices[n]: v for n, v in constants if n in indices})


def name(variant: variants.Variant) -> str:
    return " ".join((variant[1], *(f"{n}={int(v)}" for n, v in variant[2])))


@pytest.mark.parametrize("stem", STEMS)
def test_every_shader_is_understood(stem: str) -> None:
    found = library(stem)
    for variant in VARIANTS:
        if variant[0] == stem:
            assert variant[1] in found.functions


@pytest.mark.parametrize(("variant", "architecture"), SHORT)
def test_kernels_become_machine_code(variant: variants.Variant, architecture: str) -> None:
    assert machine_code(variant, architecture).startswith(b"\x7fELF")


@pytest.mark.long
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("variant", VARIANTS, ids=name)
def test_every_variant_becomes_machine_code(variant: variants.Variant, architecture: str) -> None:
    assert machine_code(variant, architecture).startswith(b"\x7fELF")


def test_code_comes_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    variant = next(v for v in VARIANTS if v[1] == "add")
    first = machine_code(variant, "sm_90")
    monkeypatch.setattr(compiler, "compile", None)
    assert machine_code(variant, "sm_90") == first


def test_diagnostics_name_the_authors_line() -> None:
    source = """\
#line 10 "mine.metal"
kernel void f(device float *y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    y[i] = missing + 1;
}
"""
    with pytest.raises(MSLError, match="mine.metal:11:5: error: identifier 'missing' is undefined"):
        compile_library(source, filename="mine.metal", architecture="sm_90")


def test_lanes_of_a_matrix_are_not_shown() -> None:
    source = """\
#include <metal_simdgroup_matrix>
using namespace metal;
kernel void f(device float *y [[buffer(0)]]) {
    simdgroup_float8x8 m(1.0f);
    y[0] = m.thread_elements()[0];
}
"""
    with pytest.raises(MSLError, match="thread_elements"):
        compile_library(source, filename="mine.metal", architecture="sm_90")


def test_source_that_adds_to_metal() -> None:
    source = """\
#include <metal_stdlib>
namespace metal { inline float twice(float x) { return 2 * x; } }
using namespace metal;
kernel void f(device float *y [[buffer(0)]], device half4 *h [[buffer(1)]]) {
    y[0] = twice(max(y[1], 0.0f));
    h[0].xy = h[1].zw + 1.0h;
    h[0].w += y[0];
}
"""
    compile_library(source, filename="mine.metal", architecture="sm_90").code("f", {})


@pytest.mark.parametrize(
    ("metal", "cuda"),
    [
        ("y = v.zx;", "y = v.template get<2, 0>();"),
        ("v.xy = w;", "v.template set<0, 1>() = w;"),
        ("v.rg == w", "v.template get<0, 1>() == w"),
        ("a.bar; struct A { int bar; };", "a.bar; struct A { int bar; };"),
        ("x = 1.5f16;", "x = half(1.5f);"),
        ('_Pragma("clang loop unroll(full)") for', '_Pragma("unroll") for'),
    ],
)
def test_spelling(metal: str, cuda: str) -> None:
    assert for_nvrtc(metal, "mine.metal") == cuda


def test_preprocessor_counts_lines_as_the_author_does(tmp_path: Path) -> None:
    (tmp_path / "mine.h").write_text("int from_mine;\n")
    source = (
        '#define TWO \\\n  2\n#line 7 "a.metal"\n#include "mine.h"\n#if TWO == 2\nint x = TWO;\n'
    )
    text = preprocess(source + "#endif", [tmp_path], [])
    assert '# 9 "a.metal"\nint x = 2;' in text
    assert "from_mine" in text


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('#line 3 "a.metal"\n#include "missing.h"\n', "a.metal:3:1: error: 'missing.h' file not"),
        ('#line 3 "a.metal"\n#error no\n', "a.metal:3:1: error: "),
    ],
)
def test_preprocessor_errors(source: str, message: str) -> None:
    with pytest.raises(MSLError) as raised:
        preprocess(source, [], [])
    assert message in str(raised.value)


def test_a_loop_ends_where_its_statement_does() -> None:
    source = """
        kernel void k(device float *y [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
            for (int i = 0; i < 4; i++) if (i < 3) _Pragma("clang loop unroll(full)")
                for (int j = 0; j < 4; j++) if (j < 2) { y[j] += 1.0f; }
            if (lane < 32) y[lane] = simd_sum(y[0]);
        }"""
    text = expanded(source, "program_source", preprocess)
    assert "MSL_ROUNDS" not in translate(text, "program_source").code  # no event is in a loop
