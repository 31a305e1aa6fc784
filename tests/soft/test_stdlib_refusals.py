"""What Metal or this device lacks is a compile error that names it, never a wrong answer."""

import pytest

from tests.soft.stdlib import library
from tinyrvllm.soft.msl import MSLError

REFUSED = {
    "float has no atomic max": (
        "atomic_fetch_max",
        "device atomic_float *p",
        "atomic_fetch_max_explicit(p, 1.0f, memory_order_relaxed);",
    ),
    "ulong has no atomic add": (
        "atomic_fetch_add",
        "device atomic_ulong *p",
        "atomic_fetch_add_explicit(p, 1ul, memory_order_relaxed);",
    ),
    "no atomic of short": ("atomics of int, uint", "device atomic<short> *p", "p->value;"),
    "no simd_sum of long": ("simd_sum", "device long *p", "p[0] = simd_sum(p[0]);"),
    "no simd_and of float": ("simd_and", "device float *p", "p[0] = simd_and(p[0]);"),
    "matrix and memory differ": (
        "differ in type",
        "device half *p",
        "simdgroup_float8x8 m; simdgroup_load(m, p);",
    ),
    "no 4x4 simdgroup matrix": (
        "8x8",
        "device float *p",
        "simdgroup_matrix<float, 4, 4> m; simdgroup_load(m, p);",
    ),
    "too few components": ("components", "device float4 *p", "p[0] = float4(1, 2, 3);"),
    "no implicit conversion of vectors": (
        "int4",
        "device float4 *p",
        "int4 a = int4(1); p[0] = a;",
    ),
    "no double": ("double", "device float *p", "double d = 1; p[0] = d;"),
    "no texture": ("texture2d", "device float *p", "texture2d<float> t;"),
    "vectors are not printed": (
        "os_log prints scalars",
        "device float4 *p",
        'os_log_default.log("%f", p[0]);',
    ),
    "ambiguous max": ("ambiguous", "device half *p", "p[0] = max(p[0], 1.0f);"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    named, parameter, statement = REFUSED[what]
    source = f"kernel void k({parameter} [[buffer(0)]]) {{\n  {statement}\n}}"
    with pytest.raises(MSLError) as error:
        library(source).kernel("k")
    assert named in str(error.value) and "stdlib.metal:4" in str(error.value), str(error.value)
