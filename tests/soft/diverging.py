"""Random programs whose lanes diverge, and what a GPU computes: a mask for every statement.

A program is a tree of statements. It is written as Metal, and run in numpy with the set of lanes
that are at each statement: lanes that left a branch, a round or a loop wait for the others where
the control flow comes together again.
"""

from dataclasses import dataclass
from random import Random

import numpy as np

LANES = np.arange(32, dtype=np.uint64)
FUNCTIONS = """
uint total(uint v) { return simd_sum(v); }
uint some(uint v) { uint r = 1; if (v & 1) r += simd_max(v); return r; }
uint passed(uint v) { return simd_sum(v + 3u); }
template <typename F> uint apply(F f, uint v) { return f(v); }
template <uint G(uint)> uint applied(uint v) { return G(v) + 1; }
struct Shift { uint operator()(uint v) const { return simd_shuffle_xor(v, ushort(1)); } };
template <typename Op> uint with(uint v) { Op op; return op(v) + 2; }
"""


@dataclass
class State:
    r: np.ndarray  # uint64 [32], each below 2**32
    loops: list[np.ndarray]  # the counters of the loops around this statement
    left: np.ndarray  # bool [32]: lanes that have left the round
    broken: np.ndarray  # bool [32]: lanes that have left the loop


class Program:
    def __init__(self, seed: int, depth: int = 3) -> None:
        self._random = Random(seed)
        self._tree = self._block(depth, 0)

    # ---- making

    def _block(self, depth: int, loops: int) -> list[tuple]:
        return [self._statement(depth, loops) for _ in range(self._random.randint(1, 3))]

    def _statement(self, depth: int, loops: int) -> tuple:
        kinds = ["event"] * 3 + ["add"] + ["if", "if", "for", "while"] * (depth > 0)
        kinds += ["continue", "break"] * (loops > 0)
        kind = self._random.choice(kinds)
        if kind == "event":
            return kind, self._random.choice(list(EVENTS)), self._random.randint(0, 9)
        if kind == "add":
            return kind, self._random.randint(1, 9)
        if kind in ("continue", "break"):
            return kind, self._condition(loops)
        if kind == "if":
            other = self._block(depth - 1, loops) if self._random.random() < 0.6 else []
            return kind, self._condition(loops), self._block(depth - 1, loops), other
        if kind == "while":
            return kind, self._random.randint(1, 3), self._block(depth - 1, loops + 1)
        step = self._random.choice([None, None, "sum"])
        return kind, self._random.randint(1, 3), self._block(depth - 1, loops + 1), step

    def _condition(self, loops: int) -> tuple[int, int, int]:
        return self._random.randint(2, 5), self._random.randint(0, 3), loops

    # ---- as Metal

    def source(self, name: str) -> str:
        body = "\n".join(self._write(s, 0) for s in self._tree)
        return (
            f"kernel void {name}(device uint *out [[buffer(0)]], uint i [[thread_index_in_simdgroup]],\n"
            "    uint at [[thread_position_in_grid]]) {\nuint r = i;\n"
            f"{body}\nout[at] = r;\n}}\n"
        )

    def _write(self, s: tuple, loops: int) -> str:
        k = f"k{loops}"
        match s:
            case ("event", name, add):
                return f"r = r * 5 + {EVENTS[name][0].format(f'(r + {add}u)')};"
            case ("add", amount):
                return f"r += {amount}u * i;"
            case ("continue" | "break" as word, condition):
                return f"if ({self._test(condition)}) {word};"
            case ("if", condition, then, other):
                text = f"if ({self._test(condition)}) {{\n{self._all(then, loops)}\n}}"
                return text + (f" else {{\n{self._all(other, loops)}\n}}" if other else "")
            case ("while", rounds, body):
                return (
                    f"uint {k} = 0;\nwhile (simd_any({k} < (i + {rounds}) % 4)) {{\n{k} += 1;\n"
                    f"{self._all(body, loops + 1)}\n}}"
                ).replace(f"uint {k} = 0;", f"{{ uint {k} = 0;") + " }"
            case ("for", rounds, body, step):
                event = ", r += simd_sum(r)" if step else ""
                return (
                    f"for (uint {k} = 1; {k} <= (i + {rounds}) % 4; {k}++{event}) {{\n"
                    f"{self._all(body, loops + 1)}\n}}"
                )
        raise ValueError(s)

    def _all(self, block: list[tuple], loops: int) -> str:
        return "\n".join(self._write(s, loops) for s in block)

    @staticmethod
    def _test(condition: tuple[int, int, int]) -> str:
        divisor, remainder, loops = condition
        counters = "".join(f" + k{n}" for n in range(loops))
        return f"(i{counters}) % {divisor} <= {remainder}"

    # ---- in numpy

    def run(self) -> np.ndarray:
        nobody = np.zeros(32, bool)
        state = State(LANES.copy(), [], nobody.copy(), nobody.copy())
        self._run(self._tree, np.ones(32, bool), state)
        return state.r.astype(np.uint32)

    def _run(self, block: list[tuple], lanes: np.ndarray, state: State) -> None:
        for s in block:
            lanes = lanes & ~state.left & ~state.broken
            if not lanes.any():
                return
            match s:
                case ("event", name, add):
                    value = EVENTS[name][1]((state.r + add) % 2**32, lanes)
                    self._set(state, lanes, state.r * 5 + value)
                case ("add", amount):
                    self._set(state, lanes, state.r + amount * LANES)
                case ("continue", condition):
                    state.left |= lanes & self._true(condition, state)
                case ("break", condition):
                    state.broken |= lanes & self._true(condition, state)
                case ("if", condition, then, other):
                    chosen = self._true(condition, state)
                    self._run(then, lanes & chosen, state)
                    self._run(other, lanes & ~chosen, state)
                case ("while", rounds, body):
                    self._loop(lanes, (LANES + rounds) % 4, body, None, state, 0)
                case ("for", rounds, body, step):
                    self._loop(lanes, (LANES + rounds) % 4, body, step, state, 1)

    def _loop(
        self, lanes: np.ndarray, rounds: np.ndarray, body: list, step: str | None, state: State, first: int
    ) -> None:
        """A `for` counts from 1 up to its rounds; a `while` goes on as long as any lane does."""
        outer_left, outer_broken = state.left, state.broken
        state.broken = np.zeros(32, bool)
        counter = np.full(32, first, np.uint64)
        state.loops.append(counter)
        while True:
            inside = lanes & ~state.broken
            if first:
                inside = inside & (counter <= rounds)
            elif not (inside & (counter < rounds)).any():
                break
            if not inside.any():
                break
            state.broken |= lanes & ~inside
            if not first:
                counter[inside] += 1
            state.left = np.zeros(32, bool)
            self._run(body, inside, state)
            if first:
                stepping = inside & ~state.broken
                counter[stepping] += 1
                if step and stepping.any():
                    self._set(state, stepping, state.r + _sum(state.r, stepping))
        state.loops.pop()
        state.left, state.broken = outer_left, outer_broken

    @staticmethod
    def _true(condition: tuple[int, int, int], state: State) -> np.ndarray:
        divisor, remainder, loops = condition
        return (LANES + sum(state.loops[:loops], np.uint64(0))) % divisor <= remainder

    @staticmethod
    def _set(state: State, lanes: np.ndarray, value: np.ndarray) -> None:
        state.r[lanes] = (value % 2**32)[lanes]


def _sum(v: np.ndarray, lanes: np.ndarray) -> np.ndarray:
    return np.full(32, v[lanes].sum() % 2**32, np.uint64)


def _some(v: np.ndarray, lanes: np.ndarray) -> np.ndarray:
    odd = lanes & (v % 2 == 1)
    return np.where(odd, 1 + (v[odd].max() if odd.any() else 0), 1).astype(np.uint64)


def _count(v: np.ndarray, lanes: np.ndarray) -> np.ndarray:
    return np.full(32, lanes.sum(), np.uint64)


def _any(v: np.ndarray, lanes: np.ndarray) -> np.ndarray:
    return np.full(32, bool((v[lanes] % 7 == 0).any()), np.uint64)


def _prefix(v: np.ndarray, lanes: np.ndarray) -> np.ndarray:
    return np.cumsum(np.where(lanes, v % 2**32, 0)) % 2**32


def _nested(v: np.ndarray, lanes: np.ndarray) -> np.ndarray:
    few = lanes & (LANES < 8)
    inner = v[few].max() if few.any() else 0
    return _sum(np.where(LANES < 8, inner, np.uint64(2)), lanes)


def _both(v: np.ndarray, lanes: np.ndarray) -> np.ndarray:
    few, more = lanes & (LANES < 8), lanes & (LANES >= 8)
    return np.where(LANES < 8, _sum(v, few), _sum(v, more))


def _plus(events, amount: int):
    return lambda v, lanes: (events(v, lanes) + amount) % 2**32


# name -> (Metal, numpy)
EVENTS = {
    "sum": ("simd_sum{}", _sum),
    "any": ("uint(simd_any({} % 7 == 0))", _any),
    "prefix": ("simd_prefix_inclusive_sum{}", _prefix),
    "count": ("popcount(uint(simd_vote::vote_t(simd_active_threads_mask())))", _count),
    "function": ("total{}", _sum),
    "sometimes": ("some{}", _some),
    "value": ("apply(passed, {})", lambda v, lanes: _sum((v + 3) % 2**32, lanes)),
    "lambda": ("apply([](uint v) {{ return simd_sum(v); }}, {})", _sum),
    "template_value": ("applied<passed>{}", lambda v, lanes: (_sum((v + 3) % 2**32, lanes) + 1) % 2**32),
    "nested": ("simd_sum(i < 8 ? simd_max{} : 2u)", _nested),
    "both": ("(i < 8 ? total{0} : total{0})", _both),
    "both_values": ("(i < 8 ? apply(passed, {0} - 3u) : apply(passed, {0} - 3u))", _both),
    "both_templates": ("(i < 8 ? applied<total>{0} : applied<total>{0})", _plus(_both, 1)),
}
