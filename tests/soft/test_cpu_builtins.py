"""Built-in parameters of kernels, for threads in a loop and in fibers, and notes of a followed one."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.soft.stdlib import HEADER, library
from tinyrvllm.soft.cpu.execute import Dispatch, Size, run
from tinyrvllm.soft.cpu.following import follow
from tinyrvllm.soft.cpu.library import compile_library

# name: its value for a thread (MSL specification, 5.2.3.6)
#   grid, group: as dispatched; of: the threadgroup's position; size: the threadgroup's own
Triple = Callable[["Thread"], tuple[int, ...]]
Single = Callable[["Thread"], int]


class Thread:
    def __init__(self, grid: Size, group: Size, at: Size) -> None:
        self.grid, self.group, self.at = grid, group, at
        self.of = tuple(p // n for p, n in zip(at, group, strict=True))
        self.inside = tuple(p % n for p, n in zip(at, group, strict=True))
        edges = zip(grid, group, self.of, strict=True)
        self.size = tuple(min(n, whole - n * k) for whole, n, k in edges)
        x, y, z = self.inside
        self.index = x + self.size[0] * (y + self.size[1] * z)


TRIPLES: dict[str, Triple] = {
    "thread_position_in_grid": lambda t: t.at,
    "threadgroup_position_in_grid": lambda t: t.of,
    "thread_position_in_threadgroup": lambda t: t.inside,
    "threads_per_threadgroup": lambda t: t.size,
    "dispatch_threads_per_threadgroup": lambda t: t.group,
    "threads_per_grid": lambda t: t.grid,
    "grid_size": lambda t: t.grid,
    "grid_origin": lambda t: (0, 0, 0),
    "threadgroups_per_grid": lambda t: tuple(
        -(-n // k) for n, k in zip(t.grid, t.group, strict=True)
    ),
}
SINGLES: dict[str, Single] = {
    "thread_index_in_threadgroup": lambda t: t.index,
    "simdgroup_index_in_threadgroup": lambda t: t.index // 32,
    "thread_index_in_simdgroup": lambda t: t.index % 32,
    "threads_per_simdgroup": lambda t: 32,
    "thread_execution_width": lambda t: 32,
    "simdgroups_per_threadgroup": lambda t: -(-int(np.prod(t.size)) // 32),
    "dispatch_simdgroups_per_threadgroup": lambda t: -(-int(np.prod(t.group)) // 32),
    "quadgroup_index_in_threadgroup": lambda t: t.index // 4,
    "thread_index_in_quadgroup": lambda t: t.index % 4,
    "quadgroups_per_threadgroup": lambda t: -(-int(np.prod(t.size)) // 4),
}
WIDTH = 3 * len(TRIPLES) + 2 + 2 + 1 + len(SINGLES)


def _kernel(name: str, begin: str) -> str:
    names = [*TRIPLES, *SINGLES]
    types = {
        n: ("uint3" if k % 2 else "ushort3") if n in TRIPLES else ("uint", "ushort")[k % 2]
        for k, n in enumerate(names)
    }
    parameters = "".join(f", {types[n]} p{k} [[{n}]]" for k, n in enumerate(names))
    parts = [
        f"p{k}{part}"
        for k, n in enumerate(names)
        for part in ([".x", ".y", ".z"] if n in TRIPLES else [""])
    ]
    stores = "".join(
        f"out[{k}] = {part}; " for k, part in enumerate([*parts, "a.x", "a.y", "b.x", "b.y", "c"])
    )
    return (
        f"kernel void {name}(device uint *all [[buffer(0)]], uint2 a [[thread_position_in_grid]],\n"
        f"ushort2 b [[threads_per_threadgroup]], ushort c [[threadgroup_position_in_grid]]{parameters}) {{\n"
        f"{begin} device uint *out = all + {WIDTH} * (p0.x + p5.x * (p0.y + p5.y * p0.z)); {stores} }}\n"
    )


@pytest.mark.parametrize("kernel", ["in_a_loop", "in_fibers"])
@pytest.mark.parametrize(
    ("grid", "group"),
    [((70, 1, 1), (64, 1, 1)), ((10, 6, 3), (4, 3, 2)), ((41, 3, 1), (40, 2, 1)), ((2, 2, 33), (1, 1, 33)), ((1025, 1, 1), (1024, 1, 1))],
)  # fmt: skip
def test_built_ins(kernel: str, grid: Size, group: Size) -> None:
    source = _kernel("in_a_loop", "") + _kernel(
        "in_fibers", "threadgroup_barrier(mem_flags::mem_none);"
    )
    out = np.full((int(np.prod(grid)), WIDTH), 77777, np.uint32)
    bound = {0: (out.ctypes.data, out.nbytes)}
    run([Dispatch(library(source).kernel(kernel), bound, grid, group)], 2)
    threads = [Thread(grid, group, at[::-1]) for at in np.ndindex(grid[::-1])]
    for thread, row in zip(threads, out.tolist(), strict=True):
        triples = {n: value(thread) for n, value in TRIPLES.items()}
        want = [x for value in triples.values() for x in value]
        want += [value(thread) for value in SINGLES.values()]
        assert row == [*want, *thread.at[:2], *thread.size[:2], thread.of[0]]


FOLLOWED = """
struct S { int a; };
kernel void k(device float *out [[buffer(0)]], uint3 at [[thread_position_in_grid]]) {
  uint3 p = at;
  float2 h = float2(0.5f, -1.5f);
  half q = h.x;
  uchar4 r = uchar4(1, 2, 3, 4);
  bool b = at.y > 1;
  float2x2 m = float2x2(1);
  S s = {1};
  out[0] = 7;
}
"""


def test_what_a_followed_thread_assigned() -> None:
    made = compile_library(HEADER + FOLLOWED, filename="f.metal", follow=True).kernel("k")
    out = np.zeros(1, np.float32)
    dispatch = Dispatch(made, {0: (out.ctypes.data, out.nbytes)}, (3, 5, 3), (2, 2, 2))
    for at in [(0, 0, 0), (1, 0, 0), (2, 2, 2), (0, 3, 1), (1, 4, 2), (2, 1, 1)]:
        events = follow(dispatch, at)
        values = [(e.line, e.label, e.value) for e in events if e.label]
        assert [e.line for e in events if not e.label] == [6, 7, 8, 9, 10, 11, 12, 13]
        assert values == [
            (6, "p", at), (7, "h", (0.5, -1.5)), (8, "q", (0.5,)), (9, "r", (1, 2, 3, 4)),
            (10, "b", (at[1] > 1,)), (13, "out[0]", (7.0,)),
        ]  # fmt: skip
        kinds = {e.label: type(e.value[0]) for e in events if e.label}
        assert {kinds[label] for label in ("p", "r")} == {int}
        assert {kinds[label] for label in ("h", "q", "out[0]")} == {float}


def test_notes_that_find_no_room_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinyrvllm.soft.cpu.following.MOST", 3)
    made = compile_library(HEADER + FOLLOWED, filename="f.metal", follow=True).kernel("k")
    out = np.zeros(1, np.float32)
    dispatch = Dispatch(made, {0: (out.ctypes.data, out.nbytes)}, (1, 1, 1), (1, 1, 1))
    assert [e.line for e in follow(dispatch, (0, 0, 0))] == [6, 6, 7]


@pytest.mark.parametrize("check", [False, True], ids=["normal", "checking"])
def test_a_simdgroup_starts_anew(check: bool) -> None:
    """After a whole one a partial one, and lanes that are in a function that is left by a barrier."""
    source = """
uint total(uint v) { return simd_sum(v); }
kernel void k(device uint *out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  if (i % 2) return;
  out[i] = i < 8 ? total(1) : total(1) + simd_sum(100u);
}
"""
    made = compile_library(HEADER + source, filename="anew.metal", check=check)
    for size in (64, 7, 20, 33, 64, 1):
        out = np.zeros(size, np.uint32)
        bound = {0: (out.ctypes.data, out.nbytes)}
        run([Dispatch(made.kernel("k"), bound, (size, 1, 1), (size, 1, 1))], 1)
        i = np.arange(size)
        lanes = np.array(
            [
                sum(
                    1
                    for k in range(size)
                    if k // 32 == j // 32 and k % 2 == 0 and (k < 8) == (j < 8)
                )
                for j in i
            ]
        )
        np.testing.assert_array_equal(out, np.where(i % 2, 0, np.where(i < 8, lanes, 101 * lanes)))


def test_a_lane_that_returned_stays_away_from_the_next_barrier() -> None:
    source = """
kernel void k(device atomic_uint *runs [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  atomic_fetch_add_explicit(runs + i, 1, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_none);
  if (i == 0) return;
  if (i % 2) simd_sum(i);
  threadgroup_barrier(mem_flags::mem_none);
  atomic_fetch_add_explicit(runs + i, 1, memory_order_relaxed);
}
"""
    runs = np.zeros(40, np.uint32)
    bound = {0: (runs.ctypes.data, runs.nbytes)}
    run([Dispatch(library(source).kernel("k"), bound, (40, 1, 1), (40, 1, 1))], 1)
    assert runs.tolist() == [1] + [2] * 39
