"""Vectors, bool vectors, packed vectors, matrices, select, packing and the like, against numpy."""

import numpy as np
import pytest

from tests.soft.stdlib import Cases, library, run_kernel

RNG = np.random.default_rng(10)
ROUND_TRIP = {"unorm4x8": 255, "unorm2x16": 65535, "snorm4x8": 127, "snorm2x16": 32767}
N = 64

# name: (result type, argument types, expression, numpy's answer from arrays of shape [N] or [N, components])
VALUES = {
    "splat": ("float4", ("float",), "float4(a)", lambda a: np.stack([a] * 4, 1)),
    "join": ("float4", ("float2", "float"), "float4(b, a, b + 1)", lambda a, b: np.c_[b, a, b + 1]),
    "convert": ("int4", ("float4",), "int4(a)", lambda a: np.trunc(a).astype(np.int32)),
    "cast": ("half4", ("int4",), "(half4)a", lambda a: a.astype(np.float16)),
    "cast_of_sum": (
        "float4",
        ("int4",),
        "(float4)a * 0.5f",
        lambda a: a.astype(np.float32) * np.float32(0.5),
    ),
    "static_cast": ("uchar4", ("int4",), "static_cast<uchar4>(a)", lambda a: a.astype(np.uint8)),
    "by_template": ("float2", ("int2",), "vec<float, 2>(a)", lambda a: a.astype(np.float32)),
    "braces": (
        "float4",
        ("float",),
        "float4{a, 1, 2, 3}",
        lambda a: np.c_[a, a * 0 + 1, a * 0 + 2, a * 0 + 3],
    ),
    "swizzle": ("float4", ("float4",), "a.wzyx", lambda a: a[:, ::-1]),
    "swizzle_colours": ("float2", ("float4",), "a.bg", lambda a: a[:, [2, 1]]),
    "write_swizzle": (
        "float4",
        ("float4",),
        "r = a; r.xz = a.yw; r[1] = 5;",
        lambda a: np.c_[a[:, 1], a[:, 0] * 0 + 5, a[:, 3], a[:, 3]],
    ),
    "shift": (
        "uint4",
        ("uint4",),
        "(a << 3) ^ (a >> 2) & 0xff",
        lambda a: (a << 3) ^ ((a >> 2) & 0xFF),
    ),
    "bits": ("uint2", ("float2",), "as_type<uint2>(a)", lambda a: a.view(np.uint32)),
    "bits_split": (
        "ushort2",
        ("float",),
        "as_type<ushort2>(a)",
        lambda a: a.view(np.uint16).reshape(-1, 2),
    ),
    "bits_joined": ("uint", ("uchar4",), "as_type<uint>(a)", lambda a: a.view(np.uint32).ravel()),
    "negate": ("short4", ("short4",), "-a + ~a", lambda a: -a + ~a),
    "dot": (
        "float",
        ("float4", "float4"),
        "dot(a, b)",
        lambda a, b: ((p := a * b)[:, 0] + p[:, 2]) + (p[:, 1] + p[:, 3]),
    ),
    "integers_as_numbers": (
        "float3",
        ("uint",),
        "float3(a, a + 1u, -1)",
        lambda a: np.c_[a, a + 1, a * 0.0 - 1],
    ),
}
TRUTHS = {
    "less": ("a < b", lambda a, b: a < b),
    "comparison_as_number": ("float4(a < b) == 1.0f", lambda a, b: a < b),
    "equal": ("a == b || isnan(a)", lambda a, b: a == b),
    # A comparison is a bool vector, whatever is done with it: true is 1.
    "variable_as_number": ("auto m = a < b; t = float4(m) == 1.0f;", lambda a, b: a < b),
    "argument_as_number": ("numbers(a < b) == 1.0f", lambda a, b: a < b),
    "argument_on_the_right": ("1.0f == numbers(a < b)", lambda a, b: a < b),
    "result_as_number": ("uint4(smaller(a, b)) == 1u", lambda a, b: a < b),
    "sum_of_truths": (
        "bool4(float((a < b).x) + (a < b)[1] == a.x - a.x + select(0, 1, a.x < b.x) + (a.y < b.y))",
        lambda a, b: np.ones(a.shape, bool),
    ),
    "both_as_number": ("auto m = a < b && b > 1.0f; t = half4(m) == 1.0h;", lambda a, b: (a < b) & (b > 1)),
    "not_as_number": ("auto m = !(a < b); t = float4(m) * 2.0f == 2.0f;", lambda a, b: a >= b),
    "cast_to_number": ("(int4)(a < b) == 1", lambda a, b: a < b),
    "compared_truths": ("(a < b) == (b > 1.0f)", lambda a, b: (a < b) == (b > 1)),
    "in_brackets": (
        (
            "int p[2] = {0, 1}; int q[2] = {1, 0}; t = bool4(p[q[0]] > p[q[p[0]]], a[p[0]] < b[0], "
            "p[1] == 1, vec<int, 2>(p[0], 1).y < 2);"
        ),
        lambda a, b: np.c_[a[:, 0] > 99, a[:, 0] < b[:, 0], a[:, 0] < 99, a[:, 0] < 99],
    ),
    "shifted": ("uint4 u = uint4(1); t = (u << 2 >> 1) == 2u & a < b;", lambda a, b: a < b),
    "bool_swizzle": ("bool4 m = a < b; t = m.wzyx;", lambda a, b: (a < b)[:, ::-1]),
    "bool_swizzle_colours": ("bool4 m = a < b; t = bool4(m.rg, (a < b).ba);", lambda a, b: a < b),
    "bool_write_swizzle": (
        "bool4 m = a < b; bool3 n = m.xxx; m.xz = m.yw; m.ga = n.xy; t = m;",
        lambda a, b: (a < b)[:, [1, 0, 3, 0]],
    ),
    "both": ("(a < b) && !(a == b)", lambda a, b: a < b),
    "stored": (
        "bool4(a.x < b.x, true, a.z < b.z, false)",
        lambda a, b: np.c_[a[:, 0] < b[:, 0], a[:, 1] < 99, a[:, 2] < b[:, 2], a[:, 3] > 99],
    ),
    "exclusive": ("bool4(a < b) ^ bool4(true)", lambda a, b: a >= b),
    "finite": (
        "isfinite(a) && isnormal(b + 10) && isordered(a, b) && !isunordered(a, b) && !isinf(a)",
        lambda a, b: a < 99,
    ),
    "sign_bits": ("signbit(a)", lambda a, b: np.signbit(a)),
    "chosen": ("select(b, a, a < b) == min(a, b)", lambda a, b: a < 99),
    "chosen_by_bool": (
        "bool4(select(1.0f, 2.0f, a.x < b.x) == 2.0f)",
        lambda a, b: np.stack([a[:, 0] < b[:, 0]] * 4, 1),
    ),
    "any_all": (
        "bool4(any(a < b), all(a < b), any(isnan(a)), all(bool4(a < b) || bool4(b <= a)))",
        lambda a, b: np.c_[(a < b).any(1), (a < b).all(1), a[:, 0] > 99, a[:, 0] < 99],
    ),
}


CLASSES = {  # of floats: (arguments, numpy's answer)
    "isnan": (1, np.isnan), "isinf": (1, np.isinf), "isfinite": (1, np.isfinite), "signbit": (1, np.signbit),
    "isnormal": (1, lambda a: np.isfinite(a) & (abs(a) >= np.finfo(a.dtype).smallest_normal)),
    "isordered": (2, lambda a, b: ~(np.isnan(a) | np.isnan(b))),
    "isunordered": (2, lambda a, b: np.isnan(a) | np.isnan(b)),
}  # fmt: skip


PRELUDE = """
typedef float4 four;
template <class T> T doubled(T v) { return T(2) * v; }
template <class T> float4 numbers(T v) { return float4(v); }
auto smaller(float4 a, float4 b) { return a < b; }
"""


@pytest.fixture(scope="module")
def vectors() -> Cases:
    cases = Cases(PRELUDE)
    for name, (result, types, code, _) in VALUES.items():
        cases.add(name, result, types, code)
    for name, (code, _) in TRUTHS.items():
        code = f"bool4 t; {code} r = t;" if ";" in code else f"bool4 t = {code}; r = t;"
        cases.add(name, "bool4", ("float4", "float4"), code)
    for t in ("float", "half"):
        for name, (count, _) in CLASSES.items():
            arguments = ", ".join("ab"[:count])
            cases.add(f"{name}_{t}", "uchar", (t,) * count, f"{name}({arguments})")
    cases.add("alias", "float4", ("float",), "doubled(four(a, half2(a), 1))")
    cases.add("bool_to_float", "float4", ("float4",), "bool4 t = a < 0; r = float4(t);")
    cases.add("to_bfloat", "ushort", ("float",), "as_type<ushort>(bfloat(a))")
    cases.add("bool3_in_memory", "float", ("bool3",), "a.x + 2 * a.y + 4 * a.z")
    for t in ("float", "int", "half"):
        p = f"packed_{t}3"
        cases.add(f"packed_{t}", p, (p, p), f"({t}3(a) + b) * a - b / {t}3(2)")
        cases.add(
            f"packed_{t}_parts", f"{t}4", (p,), f"a[1] = a.x + a.z; a += a; r = {t}4(a, a.y);"
        )
        cases.add(
            f"packed_{t}_swizzles", f"{t}4", (p,), f"a.zx = a.xy; a.g += a.b; r = {t}4(a.bgr, a.yy.x);"
        )
    cases.add("packed_float2", "packed_float2", ("packed_float2", "float"), "a.yx * b")
    for name in ROUND_TRIP:
        width = name[5]
        cases.add(f"unpack_{name}", f"float{width}", ("uint",), f"unpack_{name}_to_float(a)")
        cases.add(f"unpack_half_{name}", f"half{width}", ("uint",), f"unpack_{name}_to_half(a)")
        cases.add(f"pack_{name}", "uint", (f"float{width}",), f"pack_float_to_{name}(a)")
        cases.add(f"pack_half_{name}", "uint", (f"half{width}",), f"pack_half_to_{name}(a)")
    cases.add("unpack_565", "float3", ("ushort",), "unpack_unorm565_to_float(a)")
    cases.add(
        "pack_565", "ushort", ("ushort",), "pack_float_to_unorm565(unpack_unorm565_to_float(a))"
    )
    cases.add("unpack_10a2", "float4", ("uint",), "unpack_unorm10a2_to_float(a)")
    cases.add("unpack_srgb", "float4", ("uint",), "unpack_unorm4x8_srgb_to_float(a)")
    cases.add("pack_srgb", "uint", ("float4",), "pack_float_to_srgb_unorm4x8(a)")
    cases.add(
        "pack_10a2", "uint", ("uint",), "pack_float_to_unorm10a2(unpack_unorm10a2_to_float(a))"
    )
    for name in ("length", "length_squared", "normalize", "distance", "cross", "reflect"):
        two = name in ("distance", "cross", "reflect")
        vector = name in ("normalize", "cross", "reflect")
        cases.add(
            name,
            "float3" if vector else "float",
            ("float3",) * (1 + two),
            f"{name}(a{', b' * two})",
        )
    cases.add(
        "array",
        "float",
        ("float",),
        "array<float, 3> t = {a, 2, 3}; t[1] *= a; r = t[0] + t[1] + t.size();",
    )
    cases.add(
        "limits",
        "float4",
        ("float",),
        "float4(numeric_limits<float>::max(), numeric_limits<half>::lowest(), "
        "numeric_limits<int>::max(), numeric_limits<bfloat>::epsilon()) + a * 0",
    )
    matrix = "float3x2 m = float3x2(a.xy, a.zw, b.xy); float2x3 n = transpose(m);"
    cases.add("matrix_vector", "float2", ("float4", "float4"), matrix + " r = m * b.xyz;")
    cases.add("vector_matrix", "float3", ("float4", "float4"), matrix + " r = b.xy * m;")
    cases.add(
        "matrix_matrix",
        "float4",
        ("float4", "float4"),
        matrix + " float2x2 p = m * n; p += p * 2.0f; r = float4(p[0], p[1]);",
    )
    cases.add(
        "determinant",
        "float",
        ("float4", "float4"),
        "r = determinant(float4x4(a, b, a.yzwx, float4(1, 2, b.xy))) + determinant(float2x2(3)) - float3x3(2)[1][1];",
    )
    return cases.compile()


KINDS = {
    "float": np.float32,
    "half": np.float16,
    "int": np.int32,
    "uint": np.uint32,
    "short": np.int16,
    "ushort": np.uint16,
    "uchar": np.uint8,
    "bool": np.bool_,
}


def _array(metal_type: str, values: np.ndarray | None = None) -> np.ndarray:
    """An array of N elements laid out as Metal lays out that type: three components occupy four."""
    base = metal_type.removeprefix("packed_").rstrip("234")
    width = int(metal_type[-1]) if metal_type[-1] in "234" else 1
    room = 4 if width == 3 and not metal_type.startswith("packed_") else width
    out = np.zeros((N, room), KINDS[base])
    if values is not None:
        out[:, :width] = values.reshape(N, width)
    return out if width > 1 else out[:, 0].copy()


def _random(metal_type: str) -> np.ndarray:
    base = metal_type.removeprefix("packed_").rstrip("234")
    width = int(metal_type[-1]) if metal_type[-1] in "234" else 1
    x = (
        RNG.normal(size=(N, width)) * 4
        if base in ("float", "half")
        else RNG.integers(1, 90, (N, width))
    )
    return x.astype(KINDS[base]) if width > 1 else x.astype(KINDS[base])[:, 0]


def _run(vectors: Cases, name: str, *values: np.ndarray) -> np.ndarray:
    case = vectors.cases[name]
    arrays = [_array(t, v) for t, v in zip(case.arguments, values, strict=True)]
    out = vectors.run(name, *arrays, out=_array(case.result), threads=N)
    return out[:, :3] if case.result.endswith("3") else out


@pytest.mark.parametrize("name", VALUES)
def test_constructors_conversions_and_swizzles(vectors: Cases, name: str) -> None:
    _, types, _, expected = VALUES[name]
    values = [_random(t) for t in types]
    assert np.array_equal(_run(vectors, name, *values), expected(*values))


@pytest.mark.parametrize("name", TRUTHS)
def test_bool_vectors(vectors: Cases, name: str) -> None:
    a, b = _random("float4"), _random("float4")
    assert np.array_equal(_run(vectors, name, a, b), TRUTHS[name][1](a, b))


def test_aliases_templates_and_bools_as_numbers(vectors: Cases) -> None:
    x = RNG.integers(-8, 8, N).astype(np.float32)
    assert np.array_equal(_run(vectors, "alias", x), np.c_[x, x, x, x * 0 + 1] * 2)
    a = _random("float4")
    assert np.array_equal(_run(vectors, "bool_to_float", a), (a < 0).astype(np.float32))
    t = RNG.integers(0, 2, (N, 3)).astype(bool)
    assert np.array_equal(_run(vectors, "bool3_in_memory", t), t @ np.array([1, 2, 4]))


@pytest.mark.parametrize("t", ["float", "half"])
@pytest.mark.parametrize("name", CLASSES)
def test_classes_of_floats(vectors: Cases, name: str, t: str) -> None:
    count, expected = CLASSES[name]
    tiny, inf = np.finfo(KINDS[t]).smallest_normal, np.inf
    values = [0, -0.0, 1, -1, tiny, -tiny, tiny / 2, -tiny / 2, inf, -inf, np.nan, -np.nan, tiny * 2]
    a = np.resize(np.array(values, KINDS[t]), N)
    b = np.resize(np.array([1, np.nan, -inf], KINDS[t]), N)
    found = _run(vectors, f"{name}_{t}", *(a, b)[:count])
    assert np.array_equal(found, expected(*(a, b)[:count])), name


def test_bfloat_rounds_to_even_and_keeps_nan(vectors: Cases) -> None:
    ties = [0x3F808000, 0x3F818000, 0x3F808001, 0x3F80FFFF, 0x7F7FFFFF, 0x00008000, 0x00018000, 0x80000001]
    special = [0x7F800000, 0xFF800000, 0x7F800001, 0x7FFFFFFF, 0xFFC00000, 0x7FBFFFFF, 0, 0x80000000]
    bits = RNG.integers(0, 2**32, N, dtype=np.uint64).astype(np.uint32)
    bits[: len(ties) + len(special)] = ties + special
    found = _run(vectors, "to_bfloat", bits.view(np.float32))
    is_nan = np.isnan(bits.view(np.float32))
    rounded = (bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16
    assert np.array_equal(found[~is_nan], rounded[~is_nan])
    assert np.isnan((found[is_nan].astype(np.uint32) << 16).view(np.float32)).all()


def test_packed_vectors(vectors: Cases) -> None:
    for t in ("float", "int", "half"):
        a, b = _random(f"packed_{t}3"), _random(f"packed_{t}3")
        half_b = b // 2 if t == "int" else b / KINDS[t](2)
        assert np.array_equal(_run(vectors, f"packed_{t}", a, b), (a + b) * a - half_b)
        middle = (a[:, 0] + a[:, 2]) * 2
        moved = np.c_[a[:, 1], a[:, 1] + a[:, 0], a[:, 0]]  # a.zx = a.xy; a.y += a.z
        assert np.array_equal(
            _run(vectors, f"packed_{t}_swizzles", a), np.c_[moved[:, ::-1], moved[:, 1]]
        )
        assert np.array_equal(
            _run(vectors, f"packed_{t}_parts", a), np.c_[a[:, 0] * 2, middle, a[:, 2] * 2, middle]
        )
    a, b = _random("float2"), _random("float")
    assert np.array_equal(_run(vectors, "packed_float2", a, b), a[:, ::-1] * b[:, None])


@pytest.mark.parametrize("name", ROUND_TRIP)
def test_packing(vectors: Cases, name: str) -> None:
    x = RNG.integers(0, 2**32, N, dtype=np.uint64).astype(np.uint32)
    x[:2] = 0x80808080, 0xFFFFFFFF
    kind = ("i" if name[0] == "s" else "u") + ("1" if name.endswith("8") else "2")
    want = np.maximum(
        x.view(kind).reshape(N, -1).astype(np.float32) / np.float32(ROUND_TRIP[name]), -1
    )
    found = _run(vectors, f"unpack_{name}", x)
    assert np.array_equal(found, want)
    assert np.array_equal(_run(vectors, f"unpack_half_{name}", x), want.astype(np.float16))
    back = _run(vectors, f"pack_{name}", found * 1.5)
    clipped = np.rint(np.clip(found * 1.5, -1 if name[0] == "s" else 0, 1) * ROUND_TRIP[name])
    assert np.array_equal(back.view(kind).reshape(N, -1), clipped.astype(kind))
    half = found.astype(np.float16)
    from_half = np.rint(half.astype(np.float32) * np.float32(ROUND_TRIP[name])).astype(kind)
    packed = _run(vectors, f"pack_half_{name}", half)
    assert np.array_equal(packed.view(kind).reshape(N, -1), from_half)


def test_packing_of_other_layouts(vectors: Cases) -> None:
    x = RNG.integers(0, 65536, N).astype(np.uint16)
    parts = np.c_[x >> 11, x >> 5 & 63, x & 31] / np.array([31, 63, 31], np.float32)
    np.testing.assert_allclose(_run(vectors, "unpack_565", x), parts, rtol=1e-6)
    assert np.array_equal(_run(vectors, "pack_565", x), x)
    y = RNG.integers(0, 2**32, N, dtype=np.uint64).astype(np.uint32)
    assert np.array_equal(_run(vectors, "pack_10a2", y), y)
    parts = np.c_[y & 1023, y >> 10 & 1023, y >> 20 & 1023, y >> 30] / np.array([1023] * 3 + [3])
    np.testing.assert_allclose(_run(vectors, "unpack_10a2", y), parts, rtol=1e-6)


def test_the_srgb_curve(vectors: Cases) -> None:
    """IEC 61966-2-1, on both sides of its corner and outside of 0..1; alpha is linear."""
    y = RNG.integers(0, 2**32, N, dtype=np.uint64).astype(np.uint32)
    y[:3] = 0x000B0A09, 0x0C0B0A00, 0xFFFFFFFF  # the corner lies between 10 and 11
    c = y.view(np.uint8).reshape(N, 4) / 255.0
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    linear[:, 3] = c[:, 3]
    found = _run(vectors, "unpack_srgb", y)
    np.testing.assert_allclose(found, linear, rtol=1e-5)
    assert np.array_equal(_run(vectors, "pack_srgb", found), y)
    outside = np.array([[-1, 2, 0.0031, 3], [0.0032, 0.002, 1, -1], [0.5, 0, 0.1, 0.5]] * N)[:N]
    v = np.clip(outside, 0, 1)
    curve = np.where(v < 0.0031308, 12.92 * v, 1.055 * v ** (1 / 2.4) - 0.055)
    curve[:, 3] = v[:, 3]
    packed = _run(vectors, "pack_srgb", outside.astype(np.float32))
    assert np.array_equal(packed.view(np.uint8).reshape(N, 4), np.rint(curve * 255))


def test_geometry(vectors: Cases) -> None:
    a, b = _random("float3"), _random("float3")
    wide, other = a.astype(np.float64), b.astype(np.float64)
    norm = np.linalg.norm(wide, axis=1)
    answers = {
        "length": norm,
        "length_squared": norm**2,
        "normalize": wide / norm[:, None],
        "distance": np.linalg.norm(wide - other, axis=1),
        "cross": np.cross(wide, other),
        "reflect": wide - 2 * (wide * other).sum(1, keepdims=True) * other,
    }
    for name, want in answers.items():
        values = (a, b)[: len(vectors.cases[name].arguments)]
        np.testing.assert_allclose(_run(vectors, name, *values), want, rtol=1e-5, atol=1e-4)


def test_array_and_limits(vectors: Cases) -> None:
    x = _random("float")
    assert np.array_equal(_run(vectors, "array", x), x + x * np.float32(2) + np.float32(3))
    want = [np.finfo(np.float32).max, -65504, 2**31 - 1, 2.0**-7]
    assert np.array_equal(_run(vectors, "limits", x), np.array([want] * N, np.float32))


def test_matrices(vectors: Cases) -> None:
    a, b = _random("float4"), _random("float4")
    columns = np.stack([a[:, :2], a[:, 2:], b[:, :2]], axis=2).astype(
        np.float64
    )  # [N, 2 rows, 3 columns]
    vector, row = b[:, :3].astype(np.float64), b[:, :2].astype(np.float64)
    np.testing.assert_allclose(
        _run(vectors, "matrix_vector", a, b),
        np.einsum("nij,nj->ni", columns, vector),
        rtol=1e-4,
        atol=1e-4,
    )
    np.testing.assert_allclose(
        _run(vectors, "vector_matrix", a, b),
        np.einsum("ni,nij->nj", row, columns),
        rtol=1e-4,
        atol=1e-4,
    )
    product = 3 * columns @ columns.transpose(0, 2, 1)
    found = _run(vectors, "matrix_matrix", a, b).reshape(N, 2, 2).transpose(0, 2, 1)
    np.testing.assert_allclose(found, product, rtol=1e-4, atol=1e-3)
    last = np.c_[a[:, 0] * 0 + 1, a[:, 0] * 0 + 2, b[:, :2]]
    whole = np.stack([a, b, a[:, [1, 2, 3, 0]], last], axis=2).astype(np.float64)
    np.testing.assert_allclose(
        _run(vectors, "determinant", a, b), np.linalg.det(whole) + 9 - 2, rtol=1e-3, atol=1e-1
    )


def test_os_log_names_thread_and_line(capfd: pytest.CaptureFixture[str]) -> None:
    lib = library(
        "kernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) {\n"
        '  if (i == 40) os_log_default.log_info("x is %.2f, half %.1f", x[i], half(1.5));\n}'
    )
    run_kernel(lib, "k", np.full(64, 4, np.float32), threads=64)
    said = "[info] line 4, threadgroup (1, 0, 0), thread 8: x is 4.00, half 1.5\n"
    assert capfd.readouterr().out == said
