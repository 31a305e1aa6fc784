"""Functions with a body, lambdas, template parameters and variables, as far as tokens tell."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tinyrvllm.soft.msl.declarations import NOWHERE, Declaration
from tinyrvllm.soft.msl.tokens import Tokens

CONTROL = ("if", "constexpr", "for", "while", "switch", "return", "sizeof", "decltype", "alignas")
EXPRESSION_WORDS = ("return", "case", "else", "do", "template", "typename", "operator")
_BEFORE_A_TYPE = ("(", ",", ";", "{", "}", "const", "device", "constant", "thread", "threadgroup")
_BEFORE_A_LAMBDA = ("(", ",", "=", "return", "{", "}", ";", "?", ":", "&&", "||")
_SCALAR = re.compile(r"(?:u?(?:char|short|int|long)|bool|half|b?float|unsigned|signed)[234]?")


@dataclass(frozen=True, slots=True)
class Function:
    name: str  # that of the type for constructors and operator(), "" for other operators
    at: int  # token of the name
    parameters: int  # opening parenthesis
    body: tuple[int, int]  # with its braces; empty for a prototype
    late: bool = False  # takes its place last, by default: constructors and operator()


def lambdas(tokens: Tokens, inside: range) -> Iterator[range]:
    """The bodies of the lambdas that begin inside, with their braces."""
    for i in inside:
        if tokens[i] == "[" and tokens[i - 1] in _BEFORE_A_LAMBDA:
            brace = tokens.find(tokens.after(i), "{;")
            if tokens[brace] == "{":
                yield range(brace, tokens.after(brace))


def functions(tokens: Tokens, d: Declaration) -> Iterator[Function]:
    """The declaration's function, its methods and the lambdas that have a name."""
    if d.parameters[1] and d.kind in ("function", "variable"):
        head = [tokens[i] for i in range(d.start, d.parameters[0])]
        named = [d.start + k for k, word in enumerate(head) if word == d.name]
        at = named[-1] if named else d.start
        name = d.name if named and "operator" not in head else ""
        yield Function(name, at, d.parameters[0], d.body)
    before_a_body: Sequence[int] = ()  # initializers look like methods
    for i in range(d.body[0] if d.kind == "function" else d.start, d.end):
        if tokens[i] == "[" and tokens[i - 1] == "=" and tokens[i - 3] == "auto":
            paren = tokens.after(i)
            if tokens[paren] == "(":
                body = tokens.find(tokens.after(paren), "{")
                yield Function(tokens[i - 2], i - 2, paren, (body, tokens.after(body)))
        elif d.kind == "type" and tokens.kind(i) == "name" and i not in before_a_body:
            for method in _method(tokens, i, d.name):
                yield method
                before_a_body = range(i, method.body[0])


def _method(tokens: Tokens, i: int, type_name: str) -> Iterator[Function]:
    """The method whose name is at `i`, if one is: the calls in methods end neither in { nor so."""
    if tokens[i] in CONTROL:
        return
    paren = i + 1
    if tokens[i] == "operator":
        paren = tokens.find(i + 2, "(")  # behind that of operator()
    if tokens[paren] != "(":
        return
    end = _past_qualifiers(tokens, tokens.after(paren))
    late = tokens[i] == type_name or (tokens[i] == "operator" and tokens[i + 1] == "(")
    name = type_name if late else "" if tokens[i] == "operator" else tokens[i]
    for bracket in _initializers(tokens, end) if late else ():
        end = tokens.after(bracket)
    if tokens[end] == "{":
        yield Function(name, i, paren, (end, tokens.after(end)), late)
    elif tokens[end] == ";" and name and not late and declares_variable(tokens, i):
        yield Function(name, i, paren, NOWHERE)


def _past_qualifiers(tokens: Tokens, i: int) -> int:
    while tokens.kind(i) == "name":
        i += 1
    return tokens.find(i, "{;") if tokens[i] == "->" else i


def initialized(tokens: Tokens, f: Function) -> Iterator[int]:
    """The members in a constructor's initializer list, `: a(1), b{2}`."""
    after = _past_qualifiers(tokens, tokens.after(f.parameters))
    yield from (bracket - 1 for bracket in _initializers(tokens, after))


def _initializers(tokens: Tokens, i: int) -> Iterator[int]:
    """The opening brackets of `: a(1), b{2}` at `i`, if a list is there."""
    while tokens[i] in (":", ","):
        bracket = tokens.find(i, "({")
        yield bracket
        i = tokens.after(bracket)


def template_heads(tokens: Tokens) -> Iterator[int]:
    """The tokens inside all `template <...>`."""
    for i in range(len(tokens)):
        if tokens[i] == "template" and tokens[i + 1] == "<":
            yield from range(i + 2, tokens.after(i + 1) - 1)


def template_types(tokens: Tokens) -> set[str]:
    return {tokens[i] for i in template_heads(tokens) if tokens[i - 1] in ("typename", "class")}


def template_values(tokens: Tokens) -> set[str]:
    """Template parameters that are no types: some may be functions."""
    names = (i for i in template_heads(tokens) if tokens.kind(i) == "name")
    return {
        tokens[i]
        for i in names
        if tokens[i - 1] not in ("<", ",", "typename", "class", "(")
        and not _SCALAR.fullmatch(tokens[i])
    }


def aliases(tokens: Tokens) -> set[str]:
    """Other names of types: `using A = B;`, `typedef B A;`."""
    using = {tokens[i + 1] for i in range(len(tokens)) if tokens[i] == "using"}
    ends = (tokens.find(i, ";") for i in range(len(tokens)) if tokens[i] == "typedef")
    return using | {tokens[end - 1] for end in ends}


def declared_type(tokens: Tokens, i: int) -> str:
    """The last word of the type that stands before the variable `i`; "" where `i` is none."""
    if tokens.kind(i) != "name" or not declares_variable(tokens, i):
        return ""
    before = i - 1
    while tokens[before] in ("*", "&", "&&", "const", "thread"):
        before -= 1
    return tokens[before]


def call(tokens: Tokens, i: int) -> int:
    """The parenthesis of a call of the name at `i`; 0 where it is none."""
    after = i + 1
    if tokens[after] == "<":
        depth = 0
        while tokens[after] not in (";", "{", "&&", "||", ""):
            depth += (tokens[after] == "<") - (tokens[after] == ">")
            after = tokens.after(after) if tokens[after] == "(" else after + 1
            if depth == 0:
                break
    return after if tokens[after] == "(" else 0


def declares_variable(tokens: Tokens, i: int) -> bool:
    """`float total = 0`, `device T *total`: what stands before the name is a type."""
    if tokens[i - 1] in ("*", "&"):
        return tokens.kind(i - 2) == "name" and tokens[i - 3] in _BEFORE_A_TYPE
    if tokens[i - 1] == ">":  # of `vec<float, 4> total(0)`, or of `a > total(0)`
        start, depth = i - 1, 1
        while depth and tokens[start] not in ("(", ";", "{", "&&", "||", ""):
            start -= 1
            depth += (tokens[start] == ">") - (tokens[start] == "<")
        return not depth and tokens.kind(start - 1) == "name"
    return tokens.kind(i - 1) == "name" and tokens[i - 1] not in EXPRESSION_WORDS
