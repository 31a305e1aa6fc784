"""The linter of lesson 09 finds the loop that made a tile ten times slower, and nothing else."""

from pathlib import Path

import pytest

from lessons import spills
from tinyrvllm.mtl.library import SHADERS, splice

WRONG = """\
kernel void tile() {
    simdgroup_float8x8 sums[4][4], other;
    simdgroup_matrix<half, 8, 8> rows[4];
    for (uint k = 0; k < 100; k += 8) {
        UNROLL for (ushort i = 0; i < 4; i++) {
            UNROLL for (ushort j = 0; j < 4; j++) sums[i][j] = other;
        }
        for (ushort r = 0; r < 4; r++)   // sums[r] in a comment
            simdgroup_load(rows[r], tile);
    }
#pragma unroll
    for (ushort n = 0; n < 4; n++) { use(sums[n][0]); }
    for (ushort m = 0; m < 4; m++) {
        use(sums[1][m]);
    }
}
"""


def test_loops_that_are_not_unrolled_are_found() -> None:
    found = spills.find(WRONG)
    assert [line for line, _ in found] == [8, 13]
    assert "'rows' is indexed by 'r'" in found[0][1]


@pytest.mark.parametrize("path", sorted(SHADERS.glob("*.metal")), ids=lambda path: path.stem)
def test_our_shaders_have_none(path: Path) -> None:
    assert spills.find(path.read_text(encoding="utf-8")) == []


def test_a_shader_of_ours_would_have_some() -> None:
    for stem in ("gemm", "ksplit"):
        text = (SHADERS / f"{stem}.metal").read_text(encoding="utf-8")
        assert spills.find(text.replace("UNROLL ", "")), stem


def test_the_compiler_agrees() -> None:
    pytest.importorskip("cuda.bindings", reason="the [cuda] extra, with NVRTC, is not installed")
    constants = {"WEIGHT_TYPE": 1, "GATED": False}
    text = splice(SHADERS / "gemm.metal")
    assert spills.local_memory(text, "gemm_half", constants) == 0
    kept = text.replace('_Pragma("clang loop unroll(full)")', '_Pragma("unroll 1")')
    assert spills.local_memory(kept, "gemm_half", constants) > 0
