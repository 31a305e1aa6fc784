"""What a kernel may reach, by names: which of the three ways of running its threads it needs.

The graph is an over-estimate: a name in a body counts as a call of every declaration of that
name, and a type as everything inside it. Too much only costs time; too little would be wrong.
"""

import re
from enum import IntEnum

from tinyrvllm.soft.msl.declarations import Declaration
from tinyrvllm.soft.msl.tokens import Tokens

_SIMD = re.compile(  # os_log asks which thread it is
    r"(?:simd|quad)_\w+|simdgroup_\w+|make_filled_simdgroup_matrix"
    r"|os_log\w*|log_(?:info|debug|error|fault)"
)
_MATRIX = re.compile(r"simdgroup_(?:load|store|multiply\w*|matrix|\w+8x8)|make_filled_\w+_matrix")


class Level(IntEnum):
    """How the threads of a threadgroup must be run."""

    LOOP = 0  # nothing waits: a plain loop over the threads
    SIMDGROUPS = 1  # simd operations only: one simdgroup at a time
    THREADGROUP = 2  # barriers or threadgroup memory: all threads together


class CallGraph:
    def __init__(self, tokens: Tokens, declarations: list[Declaration]) -> None:
        self.words: dict[str, set[str]] = {}
        for d in declarations:
            start = d.parameters[0] if d.kind == "function" else d.start
            self.words.setdefault(d.name, set()).update(tokens.names(start, d.end))
        self.waits: set[str] = set()  # functions with simd operations or barriers
        self._reached: dict[str, frozenset[str]] = {}

    def reached(self, name: str) -> frozenset[str]:
        """Every name that `name`'s declarations may lead to."""
        if name not in self._reached:
            seen: set[str] = set()
            todo = [name]
            while todo:
                for word in self.words.get(todo.pop(), ()):
                    if word not in seen:
                        seen.add(word)
                        todo.append(word)
            self._reached[name] = frozenset(seen)
        return self._reached[name]

    def level(self, name: str) -> Level:
        words = self.reached(name)
        if words & {"threadgroup", "threadgroup_barrier", "matmul2d"}:
            return Level.THREADGROUP
        simd = words & self.waits or any(map(_SIMD.fullmatch, words))
        return Level.SIMDGROUPS if simd else Level.LOOP

    def uses_matrices(self, name: str) -> bool:
        return any(map(_MATRIX.fullmatch, self.reached(name)))
