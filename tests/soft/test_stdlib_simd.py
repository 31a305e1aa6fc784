"""Simdgroup and quad operations against numpy, with whole, partial and diverged simdgroups."""

import numpy as np
import pytest

from tests.soft.stdlib import Cases, library, run_kernel

RNG = np.random.default_rng(9)
LANES = np.arange(32)
FLOATS = {"float": np.float32, "half": np.float16}
INTS = {
    "char": np.int8,
    "uchar": np.uint8,
    "short": np.int16,
    "ushort": np.uint16,
    "int": np.int32,
    "uint": np.uint32,
}
REDUCTIONS: dict[str, np.ufunc] = {
    "sum": np.add,
    "product": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
SCANS = [f"prefix_{kind}_{op}" for kind in ("inclusive", "exclusive") for op in ("sum", "product")]
WIDE = {
    "float4": (np.float32, 4),
    "half2": (np.float16, 2),
    "int3": (np.int32, 4),
    "ushort4": (np.uint16, 4),
}

DIVERGENT = """
// Lanes leave the loop one after the other: at step s lanes s..31 add up what they hold.
kernel void triangle(device uint *out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
  uint total = 0;
  for (uint s = 0; s <= lane; s++) total += simd_sum(1u);
  out[lane] = total;
}
// Three ways at once, and a return in one of them.
kernel void ways(device uint *out [[buffer(0)]], uint i [[thread_position_in_grid]],
                 uint lane [[thread_index_in_simdgroup]]) {
  uint r;
  if (lane % 3 == 0) r = simd_sum(lane);
  else if (lane % 3 == 1) r = simd_max(lane) + simd_broadcast_first(lane);
  else { if (lane > 20) return; r = simd_prefix_inclusive_sum(1u); }
  out[i] = r * 1000 + simd_sum(1u);
}
"""
SHUFFLES = {
    "shuffle": "SCOPE_shuffle(a, 3 - lane % 4)",
    "broadcast": "SCOPE_broadcast(a, 2)",
    "up": "SCOPE_shuffle_up(a, 1)",
    "down": "SCOPE_shuffle_down(a, 1)",
    "rotate_up": "SCOPE_shuffle_rotate_up(a, 3)",
    "rotate_down": "SCOPE_shuffle_rotate_down(a, 3)",
    "fill_up": "SCOPE_shuffle_and_fill_up(a, a + 500, 3)",
    "fill_down": "SCOPE_shuffle_and_fill_down(a, a + 500, 3)",
    "fill_up_in_pairs": "SCOPE_shuffle_and_fill_up(a, a + 500, 1, 2)",
    "fill_down_in_pairs": "SCOPE_shuffle_and_fill_down(a, a + 500, 1, 2)",
}


@pytest.fixture(scope="module")
def simd() -> Cases:
    cases = Cases()
    for scope in ("simd", "quad"):
        for t in (*FLOATS, *INTS, *WIDE):
            bitwise = ("and", "or", "xor") if t in INTS else ()
            for op in ("sum", "max", "min", "product", *bitwise):
                cases.add(f"{scope}_{op}_{t}", t, (t,), f"{scope}_{op}(a)")
            cases.add(f"{scope}_shuffle_xor_{t}", t, (t,), f"{scope}_shuffle_xor(a, 1)")
        for t in ("float", "int", "half"):
            for op in SCANS:
                cases.add(f"{scope}_{op}_{t}", t, (t,), f"{scope}_{op}(a)")
        questions = SHUFFLES | {
            "ballot": f"(uint)({scope}_vote::vote_t)SCOPE_ballot(a & 1)",
            "votes": "(uint)SCOPE_any(a & 1) | (uint)SCOPE_all(a & 1) << 1 | (uint)SCOPE_is_first() << 2",
            "active": f"(uint)({scope}_vote::vote_t)SCOPE_active_threads_mask()",
            "vote": "(uint)SCOPE_ballot(a & 1).all() | (uint)SCOPE_ballot(a & 1).any() << 1",
            "first": "SCOPE_broadcast_first(a)",
        }
        for name, code in questions.items():
            cases.add(f"{scope}_{name}", "uint", ("uint",), code.replace("SCOPE", scope))
    return cases.compile()


def _values(kind: type, shape: tuple[int, ...], small: bool) -> np.ndarray:
    if small:
        return RNG.choice(np.array([1, 1, 1, 1, 2], kind), shape)
    return RNG.integers(0, 100, shape).astype(kind)


def _call(simd: Cases, name: str, x: np.ndarray, mask: int = 0xFFFFFFFF) -> np.ndarray:
    return simd.run(name, x, out=np.zeros_like(x), threads=len(x), group=len(x), mask=mask)


def _groups(scope: str) -> np.ndarray:
    return LANES.reshape(1, 32) if scope == "simd" else LANES.reshape(8, 4)


def _in_order(op: np.ufunc, rows: np.ndarray) -> np.ndarray:
    total = rows[0]
    for row in rows[1:]:
        total = op(total, row)
    return total


def _tree(op: np.ufunc, rows: np.ndarray) -> np.ndarray:
    """The documented order: lane i with i + 16, then i + 8 ..."""
    while len(rows) > 1:
        half = len(rows) // 2
        rows = op(rows[:half], rows[half:])
    return rows[0]


MASKS = [0xFFFFFFFF, 0x0000FFFF, 0xAAAAAAAA, 0x80000001, 0x00FF00F7, 0x00000400]


@pytest.mark.parametrize("scope", ["simd", "quad"])
@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions_are_numpys_bit_for_bit(simd: Cases, scope: str, op: str) -> None:
    kinds = {**INTS, **(FLOATS if op not in ("and", "or", "xor") else {})}
    table = {t: (kind, 1) for t, kind in kinds.items()} | (
        WIDE if op not in ("and", "or", "xor") else {}
    )
    for t, (kind, width) in table.items():
        x = _values(kind, (32, width), small=op == "product")
        if np.issubdtype(kind, np.floating) and op == "sum":
            x = RNG.normal(size=(32, width)).astype(kind)
        for mask in MASKS:
            out = _call(simd, f"{scope}_{op}_{t}", x, mask)
            for group in _groups(scope):
                active = [lane for lane in group if mask >> lane & 1]
                if not active:
                    continue
                order = _tree if len(active) == 32 else _in_order
                with np.errstate(over="ignore"):
                    want = order(REDUCTIONS[op], x[active])
                used = 3 if t.endswith("3") else width
                assert (out[active, :used] == want[:used]).all(), (scope, op, t, hex(mask))


@pytest.mark.parametrize("scope", ["simd", "quad"])
@pytest.mark.parametrize("scan", SCANS)
def test_scans(simd: Cases, scope: str, scan: str) -> None:
    op, start = (np.add, 0) if scan.endswith("sum") else (np.multiply, 1)
    for t, kind in (("float", np.float32), ("int", np.int32), ("half", np.float16)):
        x = _values(kind, (32,), small=scan.endswith("product"))
        for mask in MASKS:
            out = _call(simd, f"{scope}_{scan}_{t}", x, mask)
            for group in _groups(scope):
                total = kind(start)
                for lane in group:
                    if mask >> lane & 1:
                        after = op(total, x[lane])
                        assert out[lane] == (after if "inclusive" in scan else total)
                        total = after


def _fill(scope: str, x: np.ndarray, delta: int, modulo: int, up: bool) -> np.ndarray:
    rows, filling = x.reshape(-1, modulo), x.reshape(-1, modulo) + 500
    joined = np.concatenate([filling, rows] if up else [rows, filling], axis=1)
    start = modulo - delta if up else delta
    return joined[:, start : start + modulo].reshape(-1)


@pytest.mark.parametrize("scope", ["simd", "quad"])
def test_shuffles(simd: Cases, scope: str) -> None:
    n = 32 if scope == "simd" else 4
    x = RNG.permutation(100)[:32].astype(np.uint32)
    rows, inside = x.reshape(-1, n), np.arange(n)
    expected: dict[str, np.ndarray] = {
        "shuffle": rows[:, 3 - inside % 4],
        "broadcast": rows[:, [2] * n],
        "up": rows[:, np.maximum(inside - 1, 0)],
        "down": rows[:, np.minimum(inside + 1, n - 1)],
        "rotate_up": rows[:, (inside - 3) % n],
        "rotate_down": rows[:, (inside + 3) % n],
        "fill_up": _fill(scope, x, 3, n, True),
        "fill_down": _fill(scope, x, 3, n, False),
        "fill_up_in_pairs": _fill(scope, x, 1, 2, True),
        "fill_down_in_pairs": _fill(scope, x, 1, 2, False),
    }
    for name, want in expected.items():
        assert np.array_equal(_call(simd, f"{scope}_{name}", x), want.reshape(-1)), name


@pytest.mark.parametrize("scope", ["simd", "quad"])
def test_shuffles_of_every_type(simd: Cases, scope: str) -> None:
    for t, (kind, width) in ({t: (k, 1) for t, k in (FLOATS | INTS).items()} | WIDE).items():
        x = _values(kind, (32, width), small=False)
        out = _call(simd, f"{scope}_shuffle_xor_{t}", x)
        used = 3 if t.endswith("3") else width
        assert np.array_equal(out[:, :used], x[LANES ^ 1, :used]), t


@pytest.mark.parametrize("scope", ["simd", "quad"])
def test_votes(simd: Cases, scope: str) -> None:
    for x in (
        RNG.integers(0, 2, 32).astype(np.uint32),
        np.ones(32, np.uint32),
        np.zeros(32, np.uint32),
    ):
        for mask in MASKS:
            ballot = _call(simd, f"{scope}_ballot", x, mask)
            votes = _call(simd, f"{scope}_votes", x, mask)
            vote = _call(simd, f"{scope}_vote", x, mask)
            active = _call(simd, f"{scope}_active", x, mask)
            first = _call(simd, f"{scope}_first", LANES.astype(np.uint32), mask)
            for group in _groups(scope):
                on = [lane for lane in group if mask >> lane & 1]
                shift = 0 if scope == "simd" else int(group[0])
                for lane in on:
                    assert ballot[lane] == sum(1 << (k - shift) for k in on if x[k])
                    assert active[lane] == sum(1 << (k - shift) for k in on)
                    assert votes[lane] == any(x[on]) | all(x[on]) << 1 | (lane == on[0]) << 2
                    assert first[lane] == on[0]
                    assert vote[lane] == (sum(x[on]) == len(group)) | any(x[on]) << 1


def test_a_partial_simdgroup_reduces_over_the_lanes_it_has(simd: Cases) -> None:
    x = RNG.normal(size=45).astype(np.float32)
    out = _call(simd, "simd_sum_float", x)
    assert (out[:32] == _tree(np.add, x[:32])).all()
    assert (out[32:] == _in_order(np.add, x[32:])).all()


def test_memory_flags_are_bits() -> None:
    names = [f"mem_{n}" for n in ("device", "threadgroup", "texture", "threadgroup_imageblock", "object_data")]
    pairs = [(a, b) for a in names for b in names if a != b]
    library(
        "typedef mem_flags f;\n"
        + "".join(f"static_assert((f::{a} & f::{b}) == f::mem_none);\n" for a, b in pairs)
        + "".join(f"static_assert(((f::{a} | f::{b}) & f::{a}) == f::{a});\n" for a, b in pairs)
        + f"static_assert((uint)({' | '.join(f'f::{n}' for n in names)}) == 31 && (uint)f::mem_none == 0);\n"
    )


def test_lanes_that_leave_a_loop_take_no_part() -> None:
    out = np.zeros(32, np.uint32)
    run_kernel(library(DIVERGENT), "triangle", out, threads=32)
    assert np.array_equal(out, np.cumsum(32 - LANES))


def test_diverged_ways_reduce_among_themselves() -> None:
    out = np.zeros(64, np.uint32)
    run_kernel(library(DIVERGENT), "ways", out, threads=64, group=64)
    returned = [lane for lane in range(32) if lane % 3 == 2 and lane > 20]
    for lane in range(32):
        if lane in returned:
            want = 0
        elif lane % 3 == 0:
            want = sum(range(0, 32, 3)) * 1000
        elif lane % 3 == 1:
            want = (31 + 1) * 1000
        else:
            want = (lane // 3 + 1) * 1000
        assert out[lane] == out[lane + 32] == (want + 32 - len(returned) if want else 0), lane
