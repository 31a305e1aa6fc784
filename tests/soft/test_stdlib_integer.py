"""metal_integer against Python's unbounded integers, for every width, scalar and vector."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.soft.stdlib import Cases

RNG = np.random.default_rng(8)
TYPES = {
    "char": np.int8,
    "uchar": np.uint8,
    "short": np.int16,
    "ushort": np.uint16,
    "int": np.int32,
    "uint": np.uint32,
    "long": np.int64,
    "ulong": np.uint64,
}


def _bits(kind: type) -> int:
    return np.dtype(kind).itemsize * 8


def _unsigned(x: int, kind: type) -> int:
    return x % (1 << _bits(kind))


def _wrap(x: int, kind: type) -> int:
    """x as the type keeps it, modulo its width."""
    u = x % (1 << _bits(kind))
    return (
        u - (1 << _bits(kind))
        if np.issubdtype(kind, np.signedinteger) and u >> (_bits(kind) - 1)
        else u
    )


def _saturate(x: int, kind: type) -> int:
    return min(max(x, int(np.iinfo(kind).min)), int(np.iinfo(kind).max))


def _rotate(x: int, n: int, kind: type) -> int:
    w, u = _bits(kind), _unsigned(x, kind)
    n %= w
    return _wrap(u << n | u >> (w - n), kind)


ONE: dict[str, Callable[[int, type], int]] = {
    "abs": lambda x, k: _wrap(abs(x), k),
    "clz": lambda x, k: _bits(k) - _unsigned(x, k).bit_length(),
    "ctz": lambda x, k: _bits(k) if x == 0 else (x & -x).bit_length() - 1,
    "popcount": lambda x, k: _unsigned(x, k).bit_count(),
    "reverse_bits": lambda x, k: _wrap(int(f"{_unsigned(x, k):0{_bits(k)}b}"[::-1], 2), k),
}
TWO: dict[str, Callable[[int, int, type], int]] = {
    "absdiff": lambda a, b, k: abs(a - b),
    "addsat": lambda a, b, k: _saturate(a + b, k),
    "subsat": lambda a, b, k: _saturate(a - b, k),
    "hadd": lambda a, b, k: (a + b) >> 1,
    "rhadd": lambda a, b, k: (a + b + 1) >> 1,
    "max": lambda a, b, k: max(a, b),
    "min": lambda a, b, k: min(a, b),
    "mulhi": lambda a, b, k: (a * b) >> _bits(k),
    "rotate": _rotate,
}
THREE: dict[str, Callable[[int, int, int, type], int]] = {
    "clamp": lambda a, b, c, k: min(max(a, b), c),
    "madhi": lambda a, b, c, k: _wrap(((a * b) >> _bits(k)) + c, k),
    "madsat": lambda a, b, c, k: _saturate(a * b + c, k),
    "max3": lambda a, b, c, k: max(a, b, c),
    "min3": lambda a, b, c, k: min(a, b, c),
    "median3": lambda a, b, c, k: sorted((a, b, c))[1],
}
FIELDS = [(0, 8), (3, 5), (7, 1), (0, 0), (1, 7)]


@pytest.fixture(scope="module")
def integers() -> Cases:
    cases = Cases()
    for t in TYPES:
        u = t if t.startswith("u") else "u" + t
        for count, table in ((1, ONE), (2, TWO), (3, THREE)):
            for name in table:
                call, result = f"{name}({', '.join('abc'[:count])})", u if name == "absdiff" else t
                cases.add(f"{name}_{t}", result, (t,) * count, call)
                cases.add(f"{name}_{t}4", result + "4", (t + "4",) * count, call)
        for at, bits in FIELDS:
            cases.add(f"extract{at}_{bits}_{t}", t, (t,), f"extract_bits(a, {at}, {bits})")
            cases.add(f"insert{at}_{bits}_{t}", t, (t, t), f"insert_bits(a, b, {at}, {bits})")
    cases.add("bools", "int", ("int", "int"), "max(a > 0, b > 0) + 2 * min(a > 0, b > 0)")
    bounded = "max(a, b) + 10 * min(b, a) + 100 * clamp(a, b, b + 2)"
    cases.add("scalars", "int2", ("int2", "int"), bounded)
    for t in ("int", "uint"):
        cases.add(f"mul24_{t}", t, (t, t), "mul24(a, b)")
        cases.add(f"mad24_{t}", t, (t, t, t), "mad24(a, b, c)")
    return cases.compile()


def _numbers(kind: type, count: int = 192) -> np.ndarray:
    info = np.iinfo(kind)
    edges = np.array([info.min, info.max, 0, 1, info.max // 2, info.max - 1], kind)
    x = RNG.integers(0, 256, (count - 6, _bits(kind) // 8)).astype(np.uint8).view(kind).ravel()
    return RNG.permutation(np.concatenate([edges, x]))


@pytest.mark.parametrize("name", [*ONE, *TWO, *THREE])
def test_functions(integers: Cases, name: str) -> None:
    table, count = next((t, n) for n, t in ((1, ONE), (2, TWO), (3, THREE)) if name in t)
    for t, kind in TYPES.items():
        arrays = [_numbers(kind) for _ in range(count)]
        want = [table[name](*map(int, values), kind) for values in zip(*arrays, strict=True)]
        result = (
            np.dtype(kind).name.replace("uint", "int").replace("int", "uint")
            if name == "absdiff"
            else kind
        )
        for suffix, width in (("", 1), ("4", 4)):
            out = np.zeros(arrays[0].size, result)
            integers.run(f"{name}_{t}{suffix}", *arrays, out=out, threads=out.size // width)
            assert out.tolist() == want, f"{name} of {t}{suffix}"


def test_vectors_take_scalar_bounds(integers: Cases) -> None:
    a, b = np.array([[1, 9], [5, -7], [4, 4]], np.int32), np.array([3, -2, 4], np.int32)
    out, bound = np.zeros_like(a), b[:, None]
    integers.run("scalars", a, b, out=out, threads=3)
    want = np.maximum(a, bound) + 10 * np.minimum(a, bound) + 100 * np.clip(a, bound, bound + 2)
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("field", FIELDS)
def test_bit_fields(integers: Cases, field: tuple[int, int]) -> None:
    offset, bits = field
    mask = (1 << bits) - 1
    for t, kind in TYPES.items():
        a, b = _numbers(kind), _numbers(kind)
        signed = np.issubdtype(kind, np.signedinteger)
        out = np.zeros(a.size, kind)
        integers.run(f"extract{offset}_{bits}_{t}", a, out=out, threads=a.size)
        for x, found in zip(a.tolist(), out.tolist(), strict=True):
            want = x >> offset & mask
            assert found == (want - (mask + 1) if signed and bits and want >> (bits - 1) else want)
        integers.run(f"insert{offset}_{bits}_{t}", a, b, out=out, threads=a.size)
        want = [
            _wrap(x & ~(mask << offset) | (y & mask) << offset, kind)
            for x, y in zip(a.tolist(), b.tolist(), strict=True)
        ]
        assert out.tolist() == want


def test_the_larger_of_two_bools(integers: Cases) -> None:
    a, b = np.array([0, 0, 1, 1] * 8, np.int32), np.array([0, 1, 0, 1] * 8, np.int32)
    found = integers.run("bools", a, b, out=np.zeros(32, np.int32), threads=32)
    assert np.array_equal(found, (a | b) + 2 * (a & b))


def test_24_bit_products(integers: Cases) -> None:
    for t, kind in (("int", np.int32), ("uint", np.uint32)):
        low = -(1 << 23) if t == "int" else 0
        a, b, c = (RNG.integers(low, 1 << 23, 200).astype(kind) for _ in "abc")
        out = np.zeros(200, kind)
        integers.run(f"mul24_{t}", a, b, out=out, threads=200)
        want = [int(x) * int(y) for x, y in zip(a, b, strict=True)]
        assert out.tolist() == [_wrap(v, kind) for v in want]
        integers.run(f"mad24_{t}", a, b, c, out=out, threads=200)
        assert out.tolist() == [_wrap(v + int(z), kind) for v, z in zip(want, c, strict=True)]
