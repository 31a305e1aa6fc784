"""Functions with simd operations or barriers learn where they are called from.

A simd operation in a function that both sides of a branch call is two operations: the lanes of one
side must not meet those of the other. So each such function takes the place of its call
(`msl::From`, first of its parameters) and notes it while it runs (`msl::Call` in runtime.h). A
function that is passed on as a value keeps its type and takes none; so whoever calls a parameter
does so at one place, and takes a place too. Names decide, as in calls.py: too much costs time.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tinyrvllm.soft.msl.declarations import Declaration
from tinyrvllm.soft.msl.kernels import is_kernel
from tinyrvllm.soft.msl.tokens import Tokens

_EVENT = re.compile(
    r"(?:__metal_)?(?:simd|quad)_(?:sum|product|max|min|and|or|xor|any|all|ballot|is_first"
    r"|prefix_\w+|shuffle\w*|broadcast\w*|active_threads_mask)"
    r"|(?:simdgroup|threadgroup)_barrier|simdgroup_(?:load|store|multiply\w*|matrix|\w+8x8)"
)
_LOSES_ITS_PLACE = re.compile(r"(?:__metal_)?(?:simd|quad)_\w+|(?:simdgroup|threadgroup)_barrier")
_REFUSED = (
    "{} is not supported by the software device, which cannot tell its calls apart: "
    "make it a function with a name, and call that"
)
_CONTROL = ("if", "for", "while", "switch", "return", "sizeof", "decltype", "alignas")
_EXPRESSION_WORDS = ("return", "case", "else", "do", "template")
_BEFORE_A_TYPE = ("(", ",", ";", "{", "}", "const", "device", "constant", "thread", "threadgroup")


@dataclass(frozen=True, slots=True)
class _Function:
    name: str  # that of the type for constructors and operator(), "" for other operators
    at: int  # token of the name
    parameters: int  # opening parenthesis
    body: tuple[int, int]  # with its braces; empty for a prototype
    late: bool = False  # takes its place last, by default: constructors and operator()


class CallPaths:
    """Finds the functions before the other passes change the tokens; marks them afterwards."""

    def __init__(self, tokens: Tokens, declarations: list[Declaration]) -> None:
        self._tokens = tokens
        kernels = {d.name for d in declarations if d.kind == "function" and is_kernel(tokens, d)}
        functions = [f for d in declarations for f in _functions(tokens, d)]
        own = {f.at for f in functions}
        self._types = {f.name for f in functions if f.late}
        self.names = _with_events(tokens, functions, set()) - kernels  # that may have an event
        calls, values = self._uses(declarations, own)
        if values or _unnamed_lambda(tokens):
            callers = {f.name for f in functions if _calls_a_parameter(tokens, f)}
            self.names = _with_events(tokens, functions, callers) - kernels
            calls, values = self._uses(declarations, own)
        for f in functions:
            self._refuse_event_without_name(f)
        marked = self.names - values
        self._functions = [
            f for f in functions if f.name in marked and (not f.late or self._has_event(f))
        ]
        # An overload of an operation of metal_stdlib is called like the operation itself.
        self._calls = [
            _call(tokens, i) for i in calls if tokens[i] in marked and not _EVENT.fullmatch(tokens[i])
        ]

    def _uses(self, declarations: list[Declaration], own: set[int]) -> tuple[list[int], set[str]]:
        """Where functions with events are called, and the names of those used as values."""
        tokens, names = self._tokens, self.names - self._types
        calls: list[int] = []
        values: set[str] = set()
        for d in declarations:
            mentions = [i for i in range(d.start, d.end) if tokens[i] in names and i not in own]
            variables = {tokens[i] for i in mentions if _declares_variable(tokens, i)}
            for i in mentions:
                if tokens[i] in variables:
                    continue
                if _call(tokens, i):
                    calls.append(i)
                elif tokens[i - 1] not in (".", "->"):
                    values.add(tokens[i])
        return calls, values

    def _refuse_event_without_name(self, f: _Function) -> None:
        if not f.name and self._has_event(f):
            what = "a simd operation or barrier in an operator"
            raise self._tokens.error(f.at, _REFUSED.format(what))

    def _has_event(self, f: _Function) -> bool:
        words = self._tokens.names(*f.body)
        names = self.names
        return (
            bool(words & names)
            or any(map(_LOSES_ITS_PLACE.fullmatch, words))
            or (f.name in names and _calls_a_parameter(self._tokens, f))
        )

    def mark(self) -> None:
        tokens = self._tokens
        for paren in self._calls:
            tokens[paren] += "MSL_FROM" if tokens[paren + 1] == ")" else "MSL_FROM_AND "
        for f in self._functions:
            first, last = f.parameters + 1, tokens.after(f.parameters) - 1
            if tokens.text(first, last) == "void":
                tokens[first] = ""
            none = not tokens.text(first, last)
            if f.late or _EVENT.fullmatch(f.name):
                tokens[last] = ("MSL_CALLER_LAST" if none else " MSL_AND_CALLER_LAST") + tokens[last]
            else:
                tokens[f.parameters] += "MSL_CALLER" if none else "MSL_CALLER_AND "
            if f.body[1] and self._has_event(f):
                tokens[f.body[0]] += " MSL_ENTER;"
                before = f.at
                while before > 0 and tokens[before - 1] not in (";", "{", "}"):
                    before -= 1
                    if tokens[before] == "constexpr":  # such a function never is
                        tokens[before] = ""


def _functions(tokens: Tokens, d: Declaration) -> Iterator[_Function]:
    """The declaration's function, its methods and the lambdas that have a name."""
    if d.parameters[1] and d.kind in ("function", "variable"):
        head = [tokens[i] for i in range(d.start, d.parameters[0])]
        named = [d.start + k for k, word in enumerate(head) if word == d.name]
        at = named[-1] if named else d.start
        name = d.name if named and "operator" not in head else ""
        yield _Function(name, at, d.parameters[0], d.body)
    i = d.body[0] if d.kind == "function" else d.start
    while i < d.end:
        if tokens[i] == "[" and tokens[i - 1] == "=" and tokens[i - 3] == "auto":
            paren = tokens.after(i)
            body = tokens.find(tokens.after(paren), "{") if tokens[paren] == "(" else 0
            if body:
                yield _Function(tokens[i - 2], i - 2, paren, (body, tokens.after(body)))
        elif d.kind == "type" and tokens.kind(i) == "name" and tokens[i] not in _CONTROL:
            for method in _method(tokens, i, d.name):
                yield method
                i = max(i, method.body[0])
        i += 1


def _method(tokens: Tokens, i: int, type_name: str) -> Iterator[_Function]:
    """The method whose name is at `i`, if one is: the calls in methods end neither in { nor so."""
    paren = i + 1
    if tokens[i] == "operator":
        paren = tokens.find(i + (3 if tokens[i + 1] == "(" else 1), "(")
    if tokens[paren] != "(":
        return
    end = _past_qualifiers(tokens, tokens.after(paren))
    late = tokens[i] == type_name or (tokens[i] == "operator" and tokens[i + 1] == "(")
    name = type_name if late else "" if tokens[i] == "operator" else tokens[i]
    if late and tokens[end] == ":":  # a constructor's initializers
        end = tokens.find(end, "{;")
    if tokens[end] == "{":
        yield _Function(name, i, paren, (end, tokens.after(end)), late)
    elif tokens[end] == ";" and name and not late and _declares_variable(tokens, i):
        yield _Function(name, i, paren, (0, 0))


def _past_qualifiers(tokens: Tokens, i: int) -> int:
    while tokens.kind(i) == "name":
        i += 1
    return tokens.find(i, "{;") if tokens[i] == "->" else i


def _unnamed_lambda(tokens: Tokens) -> bool:
    return any(tokens[i] == "[" and tokens[i - 1] in ("(", ",") for i in range(len(tokens)))


def _calls_a_parameter(tokens: Tokens, f: _Function) -> bool:
    inside = range(f.parameters + 1, f.body[0])
    parameters = {
        tokens[i]
        for i in inside
        if tokens.kind(i) == tokens.kind(i - 1) == "name" and tokens[i + 1] in (",", ")")
    }
    called = [i for i in range(*f.body) if tokens[i] in parameters and tokens[i + 1] == "("]
    names = [tokens[i] for i in called if tokens[i - 1] not in (".", "->", "::")]
    if len(set(names)) < len(names):
        what = f"calling the parameter '{names[-1]}' of '{f.name}' at several places"
        raise tokens.error(called[-1], _REFUSED.format(what))
    return bool(names)


def _with_events(tokens: Tokens, functions: list[_Function], more: set[str]) -> set[str]:
    """Names of the functions that may come to a simd operation or a barrier, `more` among them."""
    words: dict[str, set[str]] = {}
    for f in functions:
        if f.name:
            words.setdefault(f.name, set()).update(tokens.names(*f.body))
    names = more | {n for n, body in words.items() if any(map(_EVENT.fullmatch, body))}
    found = names
    while found:
        found = {n for n, body in words.items() if n not in names and body & names}
        names |= found
    return names


def _call(tokens: Tokens, i: int) -> int:
    """The parenthesis of a call of the name at `i`; 0 where it is none."""
    after = i + 1
    if tokens[after] == "<":
        depth = 0
        while after < len(tokens) and tokens[after] not in (";", "{", "&&", "||"):
            depth += (tokens[after] == "<") - (tokens[after] == ">")
            after = tokens.after(after) if tokens[after] == "(" else after + 1
            if depth == 0:
                break
    return after if tokens[after] == "(" else 0


def _declares_variable(tokens: Tokens, i: int) -> bool:
    """`float total = 0`, `device T *total`: what stands before the name is a type."""
    if tokens[i - 1] in ("*", "&"):
        return tokens.kind(i - 2) == "name" and tokens[i - 3] in _BEFORE_A_TYPE
    if tokens[i - 1] == ">":  # of `vec<float, 4> total(0)`, or of `a > total(0)`
        start, depth = i - 1, 1
        while depth and tokens[start] not in ("(", ";", "{", "&&", "||", ""):
            start -= 1
            depth += (tokens[start] == ">") - (tokens[start] == "<")
        return not depth and tokens.kind(start - 1) == "name"
    return tokens.kind(i - 1) == "name" and tokens[i - 1] not in _EXPRESSION_WORDS
