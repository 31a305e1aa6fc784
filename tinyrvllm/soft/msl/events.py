"""Where a source may come to an event: a simd operation, a barrier, or a function that leads to one.

Names decide, as in calls.py: too much costs time, too little would be wrong.
"""

import re

from tinyrvllm.soft.msl.declarations import Declaration
from tinyrvllm.soft.msl.functions import (
    CONTROL,
    EXPRESSION_WORDS,
    Function,
    aliases,
    call,
    declared_type,
    declares_variable,
    functions,
    initialized,
    lambdas,
    template_heads,
    template_types,
    template_values,
)
from tinyrvllm.soft.msl.kernels import is_kernel
from tinyrvllm.soft.msl.tokens import Tokens

_MEETING = (
    r"(?:__metal_)?(?:simd|quad)_(?:sum|product|max|min|and|or|xor|any|all|ballot|is_first"
    r"|prefix_\w+|shuffle\w*|broadcast\w*|active_threads_mask)|(?:simdgroup|threadgroup)_barrier"
    r"|get_(?:left|right)_input_cooperative_tensor"  # for the run() that follows; `run` says little
)
_MATRIX = r"simdgroup_(?:load|store|multiply\w*|matrix|\w+8x8)"
EVENT = re.compile(f"{_MEETING}|{_MATRIX}")
# Those at which all lanes wait: a matrix is the business of lane 0 alone (simdgroup_matrix.h).
MEETING = re.compile(_MEETING)
_NO_OPERANDS = (*CONTROL, *EXPRESSION_WORDS)


class Events:
    """The functions of a source and their events, by the tokens before any pass changes them.

    A function that is used as a value keeps its type, and lambdas have none that could be changed:
    those do not know where they are called. So calls of what may be one (a parameter, a variable,
    `F()(x)`) count as events, as long as there is such a function or a functor with an event.
    """

    def __init__(self, tokens: Tokens, declarations: list[Declaration]) -> None:
        self.tokens = tokens
        self.functions = [f for d in declarations for f in functions(tokens, d)]
        self.types = {f.name for f in self.functions if f.late}
        self._kernels = {
            d.name for d in declarations if d.kind == "function" and is_kernel(tokens, d)
        }
        self._declarations = declarations
        # Names that are declared there, and not called.
        self._own = {f.at for f in self.functions} | set(template_heads(tokens))
        self._own |= {i for f in self.functions for i in initialized(tokens, f)}
        self._value_calls: set[int] = set()  # calls of variables that may be a function with events
        self._made: set[str] = set()  # types whose constructor may have an event
        self._callers: set[str] = set()  # functions that call such a variable
        self._find()
        while more := self._find_callers() - self._callers:
            self._callers |= more
            self._find()
        self.places = [i for i in range(len(tokens)) if self.call(i)]

    def _find(self) -> None:
        self.names = self.leading_to(EVENT)
        self.calls, self.values = self._uses()

    def leading_to(self, pattern: re.Pattern[str]) -> set[str]:
        """Names of the functions and types that may come to what `pattern` names."""
        words: dict[str, set[str]] = {}
        for f in self.functions:
            if f.name:
                words.setdefault(f.name, set()).update(self.tokens.names(*f.body))
        direct = {n for n, body in words.items() if any(map(pattern.fullmatch, body))}
        names = self._callers | direct
        found = names
        while found:
            found = {n for n, body in words.items() if n not in names and body & names}
            names |= found
        return names - self._kernels

    def _uses(self) -> tuple[set[int], set[str]]:
        """Where functions with events are called, and the names of those used as values."""
        tokens, names = self.tokens, self.names - self.types
        calls: set[int] = set()
        values: set[str] = set()
        for d in self._declarations:
            inside = range(d.start, d.end)
            mentions = [i for i in inside if tokens[i] in names and i not in self._own]
            variables = {tokens[i] for i in mentions if declares_variable(tokens, i)}
            for i in mentions:
                if tokens[i] in variables:
                    continue
                if call(tokens, i):
                    calls.add(i)
                elif tokens[i - 1] not in (".", "->"):
                    values.add(tokens[i])
        return calls, values

    def _find_callers(self) -> set[str]:
        tokens = self.tokens
        late = {tokens[f.at] for f in self.functions if f.late and self.has_event(f)}
        if not (self.values or late or self._unnamed_lambda()):
            return set()
        types = template_types(tokens)
        self._made = types if late - {"operator"} else set()
        self._find_values(types | aliases(tokens) | {"auto"})
        return {f.name for f in self.functions if any(map(self.unknown, range(*f.body)))}

    def _find_values(self, unknown: set[str]) -> None:
        """The calls of variables whose type may be that of a function: one of `unknown`."""
        tokens = self.tokens
        types = {i: declared_type(tokens, i) for i in range(len(tokens)) if i not in self._own}
        names = {tokens[i] for i, type_ in types.items() if type_ in unknown}
        names = (names | template_values(tokens)) - {f.name for f in self.functions}
        names |= self.values
        for f in self.functions:
            local: dict[str, str] = {}  # variable -> its type
            for i in range(f.parameters, f.body[1]):
                if types.get(i):
                    local[tokens[i]] = types[i]
                elif i in self._own or tokens[i + 1] != "(" or i not in range(*f.body):
                    continue
                elif tokens.kind(i) == "name":
                    member = tokens[i - 1] in (".", "->")
                    type_ = None if member else local.get(tokens[i])
                    if tokens[i] in names if type_ is None else type_ in unknown:
                        self._value_calls.add(i)
                elif tokens[i] in (")", "}", "]") and self.callee(i) < i:
                    self._value_calls.add(i)

    def unknown(self, i: int) -> bool:
        """Whether a function without a place, or a constructor, may be called at `i`."""
        return i in self._value_calls or self.tokens[i] in self._made

    def calls_value(self, i: int) -> bool:
        """Whether a variable, or what `F()`, `F{}`, `f[k]` or `(*f)` is, is called behind `i`."""
        return i in self._value_calls

    def callee(self, i: int) -> int:
        """Where the expression begins that is called by the parenthesis behind `i`; `i` if none."""
        tokens = self.tokens
        if tokens[i] in (")", "}", "]"):
            first = tokens.opening(i)
            if tokens[first] == "(" and tokens[first + 1] == "*" and tokens.kind(first - 1) != "name":
                return first
            name = first - 1 if tokens[first - 1] != ">" else tokens.opening(first - 1) - 1
            if tokens.kind(name) != "name" or tokens[name] in _NO_OPERANDS:
                return i
        return self._start(i)

    def _start(self, i: int) -> int:
        """Where the expression begins that ends at `i`, a name, a call, a subscript or the like."""
        tokens = self.tokens
        if tokens[i] in (")", "]", "}", ">"):
            i = tokens.opening(i)
            condition = tokens[i - 1] == ")" and tokens[tokens.opening(i - 1) - 1] in CONTROL
            if condition or tokens[i - 1] == "}" or not self._ends_an_operand(i - 1):
                return i
            return self._start(i - 1)
        if tokens[i - 1] not in (".", "->", "::"):
            return i
        return self._start(i - 2) if self._ends_an_operand(i - 2) else i - 1

    def _ends_an_operand(self, i: int) -> bool:
        word = self.tokens[i]
        name = self.tokens.kind(i) == "name" and word not in _NO_OPERANDS
        return name or word in (")", "]", "}", ">")

    def call(self, i: int) -> int:
        """The parenthesis of the call whose name is at `i`, if it may come to an event; else 0."""
        tokens = self.tokens
        if i in self._own:
            return 0
        if i in self._value_calls:
            return i + 1
        if tokens[i] in self._made:
            return tokens.find(i, "({;")
        named = EVENT.fullmatch(tokens[i]) or tokens[i] in self.names
        return call(tokens, i) if named else 0

    def has_event(self, f: Function) -> bool:
        words = self.tokens.names(*f.body)
        return (
            bool(words & self.names)
            or any(map(MEETING.fullmatch, words))
            or (f.name in self.names and any(map(self.unknown, range(*f.body))))
        )

    def _unnamed_lambda(self) -> bool:
        """Whether a lambda with an event has no name of its own."""
        tokens, named = self.tokens, {f.body[0] for f in self.functions}
        for body in lambdas(tokens, range(len(tokens))):
            inside = tokens.names(body.start, body.stop)
            if body.start not in named and (
                inside & self.names or any(map(EVENT.fullmatch, inside))
            ):
                return True
        return False
