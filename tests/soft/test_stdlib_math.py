"""metal_math against numpy in float64: float to a few units in the last place, half rounded once."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from tests.soft.stdlib import Cases, ulps

RNG = np.random.default_rng(7)
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 3e-39, 65504, 1e30]


def _fract(x: np.ndarray) -> np.ndarray:
    return np.where(np.isinf(x), 0.0, x - np.floor(x))


def _sign(x: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(x), 0.0, np.sign(x))


def _round(x: np.ndarray) -> np.ndarray:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


# function: (numpy's, arguments' range, units in the last place of float that Metal's table allows)
ONE: dict[str, tuple[Callable[[np.ndarray], np.ndarray], tuple[float, float], float]] = {
    "acos": (np.arccos, (-1, 1), 4),
    "acosh": (np.arccosh, (1, 100), 4),
    "asin": (np.arcsin, (-1, 1), 4),
    "asinh": (np.arcsinh, (-50, 50), 4),
    "atan": (np.arctan, (-50, 50), 4),
    "atanh": (np.arctanh, (-0.99, 0.99), 4),
    "ceil": (np.ceil, (-100, 100), 0),
    "cos": (np.cos, (-30, 30), 4),
    "cosh": (np.cosh, (-10, 10), 4),
    "cospi": (lambda x: np.cos(np.pi * x), (-0.45, 0.45), 4),
    "exp": (np.exp, (-100, 100), 4),
    "exp10": (lambda x: np.power(10.0, x), (-30, 30), 4),
    "exp2": (np.exp2, (-140, 140), 4),
    "abs": (np.abs, (-100, 100), 0),
    "fabs": (np.abs, (-100, 100), 0),
    "floor": (np.floor, (-100, 100), 0),
    "fract": (_fract, (-100, 100), 0.5),
    "log": (np.log, (0, 1000), 4),
    "log10": (np.log10, (0, 1000), 4),
    "log2": (np.log2, (0, 1000), 4),
    "rint": (np.rint, (-100, 100), 0),
    "round": (_round, (-100, 100), 0),
    "rsqrt": (lambda x: 1 / np.sqrt(x), (0, 1000), 2),
    "saturate": (lambda x: np.fmin(np.fmax(x, 0), 1), (-2, 2), 0),
    "sign": (_sign, (-2, 2), 0),
    "sin": (np.sin, (-30, 30), 4),
    "sinh": (np.sinh, (-10, 10), 4),
    "sinpi": (lambda x: np.sin(np.pi * x), (-0.5, 0.5), 4),
    "sqrt": (np.sqrt, (0, 1000), 0.5),
    "tan": (np.tan, (-1.5, 1.5), 6),
    "tanh": (np.tanh, (-10, 10), 5),
    "tanpi": (lambda x: np.tan(np.pi * x), (-0.45, 0.45), 6),
    "trunc": (np.trunc, (-100, 100), 0),
}
TWO = {
    "atan2": (np.arctan2, 6),
    "copysign": (np.copysign, 0),
    "divide": (np.divide, 0.5),
    "fdim": (lambda a, b: np.where(a <= b, 0.0, a - b), 0.5),
    "fmax": (np.fmax, 0),
    "fmin": (np.fmin, 0),
    "fmod": (np.fmod, 0),
    "max": (np.fmax, 0),
    "min": (np.fmin, 0),
    "pow": (lambda a, b: np.power(np.abs(a), b), 16),
    "powr": (lambda a, b: np.power(np.abs(a), b), 16),
    "step": (lambda e, x: np.where(x < e, 0.0, 1.0), 0),
}
POSITIVE_BASE = ("pow", "powr")
ARITHMETIC = {"add": "+", "subtract": "-", "multiply": "*", "quotient": "/"}
TYPES = {"float": np.float32, "half": np.float16}


@pytest.fixture(scope="module")
def maths() -> Cases:
    cases = Cases()
    for t in TYPES:
        for name in ONE:
            cases.add(f"{name}_{t}", t, (t,), f"{name}(a)")
            cases.add(f"{name}_{t}3", f"{t}3", (f"{t}3",), f"precise::{name}(a)")
        for name in TWO:
            a = "abs(a)" if name in POSITIVE_BASE else "a"
            cases.add(f"{name}_{t}", t, (t, t), f"{name}({a}, b)")
            cases.add(f"{name}_{t}4", f"{t}4", (f"{t}4", f"{t}4"), f"fast::{name}({a}, b)")
        for word, sign in ARITHMETIC.items():
            cases.add(f"{word}_{t}", t, (t, t), f"a {sign} b")
            cases.add(f"{word}_{t}2", f"{t}2", (f"{t}2", f"{t}2"), f"a {sign} b")
        cases.add(f"twice_rounded_{t}", t, (t, t, t), "a * b + c")
        for name in ("fma", "mix", "median3", "smoothstep"):
            cases.add(f"{name}_{t}", t, (t, t, t), f"{name}(a, b, c)")
        cases.add(f"clamp_{t}4", f"{t}4", (f"{t}4", t, t), "clamp(a, b, c)")
        cases.add(f"nextafter_{t}", t, (t, t), "nextafter(a, b)")
        cases.add(f"ldexp_{t}", t, (t, "int"), "ldexp(a, b)")
    cases.add("frexp", "float2", ("float",), "int e; float m = frexp(a, e); r = float2(m, e);")
    cases.add("modf", "float2", ("float",), "float w; float f = modf(a, w); r = float2(f, w);")
    cases.add("sincos", "float2", ("float",), "float c; float s = sincos(a, c); r = float2(s, c);")
    mixed = "float4(pow(a, 2), max(a, 0.0f), fma(a, 2, 1), exp(bfloat(a)))"
    cases.add("mixed", "float4", ("float",), mixed)
    cases.add("bfloat_sum", "bfloat", ("bfloat", "bfloat"), "a + b")
    cases.add("bfloat_from", "bfloat", ("float",), "bfloat(a)")
    cases.add("half_from", "half", ("float",), "half(a)")
    return cases.compile()


def _numbers(low: float, high: float, kind: type, count: int = 999) -> np.ndarray:
    x = RNG.uniform(low, high, count).astype(kind)
    with np.errstate(over="ignore"):
        special = np.array(SPECIAL).astype(kind)
    inside = special[(special >= low) & (special <= high) | ~np.isfinite(special)]
    return np.concatenate([x, inside, np.zeros(-(count + len(inside)) % 12, kind)])


def _apply(
    maths: Cases, name: str, result: type, *arrays: np.ndarray, width: int = 1
) -> np.ndarray:
    """One element a thread, or one vector of `width` elements."""
    count = arrays[0].size // width
    if width == 3:
        out = np.zeros((count, 4), result)
        maths.run(name, *(_spread(a) for a in arrays), out=out, threads=count)
        return out[:, :3].reshape(-1)
    return maths.run(name, *arrays, out=np.zeros(arrays[0].size, result), threads=count)


def _spread(a: np.ndarray) -> np.ndarray:
    """float3 occupies four."""
    return np.concatenate([a.reshape(-1, 3), np.zeros((a.size // 3, 1), a.dtype)], axis=1)


@pytest.mark.parametrize("name", ONE)
def test_functions_of_one_argument(maths: Cases, name: str) -> None:
    exact, (low, high), allowed = ONE[name]
    for t, kind in TYPES.items():
        x = _numbers(low, high, kind)
        if kind == np.float16 and name in ("exp", "exp2", "exp10", "sinh", "cosh"):
            x = np.clip(x, -9, 9) if name != "exp10" else np.clip(x, -4, 4)
        with np.errstate(all="ignore"):
            want = exact(x.astype(np.float64))
        limit = allowed if kind == np.float32 else min(allowed, 0.51)
        for width, suffix in ((1, ""), (3, "3")):
            found = _apply(maths, f"{name}_{t}{suffix}", kind, x, width=width)
            off = ulps(found, want)
            worst = int(off.argmax())
            assert off[worst] <= limit, (
                f"{name}({t} {x[worst]!r}) = {found[worst]!r}, not {want[worst]!r}"
            )


@pytest.mark.parametrize("name", TWO)
def test_functions_of_two_arguments(maths: Cases, name: str) -> None:
    exact, allowed = TWO[name]
    for t, kind in TYPES.items():
        a = _numbers(-3, 3, kind)
        b = RNG.permutation(_numbers(-3, 3, kind))
        if name in POSITIVE_BASE:
            a, b = np.where(np.isnan(a), kind(1), a), np.where(np.isfinite(b), b, kind(1))
        with np.errstate(all="ignore"):
            want = exact(a.astype(np.float64), b.astype(np.float64))
        limit = allowed if kind == np.float32 else min(allowed, 0.51)
        for width, suffix in ((1, ""), (4, "4")):
            off = ulps(_apply(maths, f"{name}_{t}{suffix}", kind, a, b, width=width), want)
            assert off.max() <= limit, (name, t, a[off.argmax()], b[off.argmax()])


def _bits_equal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.view(f"u{a.itemsize}") == b.view(f"u{b.itemsize}")) | (np.isnan(a) & np.isnan(b))


@pytest.mark.parametrize("word", ["add", "subtract", "multiply", "quotient"])
def test_arithmetic_is_numpys_bit_for_bit(maths: Cases, word: str) -> None:
    operation = {
        "add": np.add,
        "subtract": np.subtract,
        "multiply": np.multiply,
        "quotient": np.divide,
    }[word]
    for t, kind in TYPES.items():
        a, b = (
            RNG.integers(0, 256, (40000, np.dtype(kind).itemsize))
            .astype(np.uint8)
            .view(kind)
            .ravel()
            for _ in "ab"
        )
        with np.errstate(all="ignore"):
            want = operation(a, b)
        for width, suffix in ((1, ""), (2, "2")):
            assert _bits_equal(
                _apply(maths, f"{word}_{t}{suffix}", kind, a, b, width=width), want
            ).all()


def test_a_product_and_a_sum_are_rounded_one_by_one(maths: Cases) -> None:
    for t, kind in TYPES.items():
        a, b, c = (RNG.normal(size=6000).astype(kind) for _ in "abc")
        assert _bits_equal(_apply(maths, f"twice_rounded_{t}", kind, a, b, c), a * b + c).all()


def test_fma_rounds_once(maths: Cases) -> None:
    for t, kind in TYPES.items():
        a, b = (RNG.normal(size=2000).astype(kind) for _ in "ab")
        c = (-(a * b)).astype(kind)  # what remains is the rounding error of a * b
        exact = [
            float(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)))
            for x, y, z in zip(a, b, c, strict=True)
        ]
        assert _bits_equal(
            _apply(maths, f"fma_{t}", kind, a, b, c), np.array(exact).astype(kind)
        ).all()


def test_mix_clamp_median_smoothstep(maths: Cases) -> None:
    for t, kind in TYPES.items():
        a, b, c = (RNG.uniform(-2, 2, 1200).astype(kind) for _ in "abc")
        assert np.array_equal(_apply(maths, f"mix_{t}", kind, a, b, c), a + (b - a) * c)
        assert np.array_equal(
            _apply(maths, f"median3_{t}", kind, a, b, c), np.median([a, b, c], axis=0).astype(kind)
        )
        low, high = np.minimum(b[:300], c[:300]), np.maximum(b[:300], c[:300])
        got = _apply(maths, f"clamp_{t}4", kind, a, low, high, width=4)
        assert np.array_equal(got, np.clip(a, low.repeat(4), high.repeat(4)))
        with np.errstate(divide="ignore"):
            u = np.clip((c - a) / (b - a), 0, 1).astype(np.float64)
        np.testing.assert_allclose(
            _apply(maths, f"smoothstep_{t}", kind, a, b, c), u * u * (3 - 2 * u), atol=4e-3
        )


def test_nextafter_and_ldexp(maths: Cases) -> None:
    for t, kind in TYPES.items():
        a, b = _numbers(-3, 3, kind), RNG.permutation(_numbers(-3, 3, kind))
        assert _bits_equal(_apply(maths, f"nextafter_{t}", kind, a, b), np.nextafter(a, b)).all()
        e = RNG.integers(-20, 20, a.size).astype(np.int32)
        with np.errstate(over="ignore"):
            assert _bits_equal(
                _apply(maths, f"ldexp_{t}", kind, a, e),
                np.ldexp(a.astype(np.float64), e).astype(kind),
            ).all()


def test_two_results(maths: Cases) -> None:
    x = _numbers(-100, 100, np.float32)
    x = x[np.isfinite(x)]
    for name, parts in (
        ("frexp", np.frexp(x)),
        ("modf", np.modf(x)),
        ("sincos", (np.sin(x), np.cos(x))),
    ):
        out = np.zeros((x.size, 2), np.float32)
        maths.run(name, x, out=out, threads=x.size)
        np.testing.assert_allclose(out, np.stack(parts, axis=1), rtol=1e-6, atol=1e-6)


def test_overloads_resolve_as_in_metal(maths: Cases) -> None:
    x = RNG.normal(size=64).astype(np.float32)
    out = np.zeros((64, 4), np.float32)
    maths.run("mixed", x, out=out, threads=64)
    np.testing.assert_allclose(out[:, 0], x * x, rtol=1e-6)
    assert np.array_equal(out[:, 1], np.maximum(x, 0))
    np.testing.assert_allclose(out[:, 2], x * 2 + 1, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(out[:, 3], np.exp(x), rtol=5e-2)


def _to_bfloat(x: np.ndarray) -> np.ndarray:
    u = x.view(np.uint32)
    rounded = ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded)


def test_conversions_round_to_even(maths: Cases) -> None:
    x = np.concatenate([RNG.normal(size=5000) * 10.0 ** RNG.integers(-6, 6, 5000), SPECIAL]).astype(
        np.float32
    )
    half = np.zeros(x.size, np.float16)
    maths.run("half_from", x, out=half, threads=x.size)
    with np.errstate(over="ignore"):
        assert _bits_equal(half, x.astype(np.float16)).all()
    bits = np.zeros(x.size, np.uint16)
    maths.run("bfloat_from", x, out=bits, threads=x.size)
    finite = ~np.isnan(x)
    assert np.array_equal(bits[finite], _to_bfloat(x)[finite])
    a, b = bits[:2000], bits[2000:4000]
    total = np.zeros(2000, np.uint16)
    maths.run("bfloat_sum", a, b, out=total, threads=2000)
    wide = [(v.astype(np.uint32) << 16).view(np.float32) for v in (a, b)]
    assert np.array_equal(total, _to_bfloat(wide[0] + wide[1]))
