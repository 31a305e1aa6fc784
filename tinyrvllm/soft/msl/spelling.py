"""Where Metal and C++ spell a thing differently: literals, vector constructors, vector casts."""

import itertools
import re

from tinyrvllm.soft.msl.functions import lambdas
from tinyrvllm.soft.msl.tokens import Tokens

_SCALARS = "bool|float|half|bfloat|char|uchar|short|ushort|int|uint|long|ulong"
_VECTOR = re.compile(rf"(?:packed_)?(?:{_SCALARS})[234]")
_TYPE = re.compile(rf"(?:packed_)?(?:{_SCALARS})[234]?")
_DECIMAL = re.compile(r"([\d.']+(?:[eE][+-]?\d+)?)([a-zA-Z]*)")
_HEXADECIMAL = re.compile(r"(0[xX][\da-fA-F.]+[pP][+-]?\d+)([a-zA-Z]*)")
_NOT_A_CALL = ("if", "for", "while", "switch", "return", "sizeof", "decltype", "(", "=", ",")
_EXPRESSION_WORDS = ("return", "case", "else", "do", "constexpr")


def literals(tokens: Tokens) -> None:
    """1.0 is a float, 1.0h a half and 1.0bf a bfloat."""
    for i, token in enumerate(tokens.list):
        if token.kind != "number":
            continue
        match = _HEXADECIMAL.fullmatch(token.text) or _DECIMAL.fullmatch(token.text)
        if not match:
            continue
        digits, suffix = match[1], match[2].lower()
        real = "." in digits or "p" in digits.lower() or "e" in digits.lower()
        if suffix == "h":
            tokens[i] = f"{digits if real else digits + '.0'}f16"
        elif suffix == "bf":
            tokens[i] = f"((bfloat){digits if real else digits + '.0'}f)"
        elif real and not suffix:
            tokens[i] = token.text + "f"


def vectors(tokens: Tokens) -> None:
    """float4(a, b) -> metal::make<float4>(a, b), and (float4)a -> metal::caster<float4>()->*a.

    In C++ neither means for clang's vectors what it means in Metal. A name that may stand for a
    vector (a template parameter, an alias) is treated alike: make and caster know the difference.
    They also convert between half and bfloat, which clang does not.
    """
    names = _possible_vectors(tokens)
    for i in range(len(tokens)):
        x = tokens[i]
        if x == "static_cast" and tokens[i + 1] == "<":
            if not {"*", "&"} & {tokens[k] for k in range(i, tokens.after(i + 1))}:
                tokens[i] = "metal::make"
        elif x == "(":
            _cast(tokens, i, names)
        elif (end := _vector_type(tokens, i, names)) and tokens[end] == "(":
            start = _qualified(tokens, i)
            if not _declares(tokens, start, end):
                tokens[start] = "metal::make<" + tokens[start]
                tokens[end - 1] += ">"
        elif end and tokens[end + 1] == "(" and _initializes(tokens, i, end):
            start = _qualified(tokens, i)
            ctype = tokens.text(start, end)
            tokens[end + 1] = f"= metal::make<{ctype}>" + tokens[end + 1]


def braces(tokens: Tokens) -> None:
    """`f({x, y, z})` -> `f(metal::braced(x, y, z))`: clang makes no vector of a braced argument."""
    for i in range(len(tokens)):
        if tokens[i] != "{" or tokens[i - 1] != "(" or tokens[i - 2] in _NOT_A_CALL:
            continue
        end = tokens.after(i) - 1
        inside = {tokens[k] for k in range(i + 1, end)}
        if end > i + 1 and not inside & {"{", ";", "="}:
            tokens[i], tokens[end] = "metal::braced(", ")"


def subscripts(tokens: Tokens) -> None:
    """`v[i]` -> `v[metal::detail::index<decltype(v)>(i)]` for `auto i` in a lambda that takes autos.

    There `i` may be of a class that converts to an integer, with which clang indexes no vector.
    """
    for body in lambdas(tokens, range(len(tokens))):
        if tokens[body.start - 1] != ")" or tokens[body.start - 3] != "auto":
            continue
        local = {tokens[k + 1] for k in body if tokens[k] == "auto" and tokens[k + 2] == "="}
        for k in body:
            indexed = tokens[k] == "[" and tokens[k + 1] in local and tokens[k + 2] == "]"
            if indexed and tokens.kind(k - 1) == "name" and tokens[k - 2] in ("(", "="):
                tokens[k] += f"metal::detail::index<decltype({tokens[k - 1]})>("
                tokens[k + 2] = ")]"


def _possible_vectors(tokens: Tokens) -> set[str]:
    names = {"half", "bfloat"}
    for i in range(len(tokens)):
        if tokens[i] in ("typename", "class") and tokens[i + 2] in (",", ">", "="):
            names.add(tokens[i + 1])
        elif tokens[i] == "using" and tokens[i + 2] == "=":
            names.add(tokens[i + 1])
            if tokens[i - 1] != ">":  # a function may deduce through an alias template
                _name_bool_vectors(tokens, i)
        elif tokens[i] == "typedef":
            end = tokens.find(i, ";{")
            if tokens[end] == ";" and tokens.kind(end - 1) == "name":
                names.add(tokens[end - 1])
            _name_bool_vectors(tokens, i)
    return names


def _name_bool_vectors(tokens: Tokens, i: int) -> None:
    """`typedef vec<T, 2> V;` with T = bool must be bool2, which the alias template vec cannot be."""
    for k in range(i, tokens.find(i, ";{")):
        if tokens[k] == "vec" and tokens[k + 1] == "<":
            tokens[k] = "any_vec" if tokens[k - 1] == "::" else "metal::any_vec"


def _vector_type(tokens: Tokens, i: int, names: set[str]) -> int:
    """Position after the type at `i` that is or may be a vector; 0 where there is none."""
    if tokens[i] in ("vec", "any_vec", "metal::any_vec") and tokens[i + 1] == "<":
        return tokens.after(i + 1)
    return i + 1 if _VECTOR.fullmatch(tokens[i]) or tokens[i] in names else 0


def _qualified(tokens: Tokens, i: int) -> int:
    """Where the type whose last name is at `i` begins: metal::float4, typename A<int>::T."""
    while tokens[i - 1] == "::":
        i -= 2
        if tokens[i] == ">":
            i = tokens.opening(i) - 1
    return i - (tokens[i - 1] == "typename")


def _declares(tokens: Tokens, i: int, paren: int) -> bool:
    """True where a type before a parenthesis is no constructor call.

    ~T(, operator T(, x.T(, and the declarator of `float4 (&tile)[8]`.
    """
    if tokens[i - 1] in ("operator", "~", ".", "->", "struct", "class", "decltype"):
        return True
    declarator = tokens[paren + 1] in ("&", "*") and tokens[paren + 3] == ")"
    return declarator and tokens[paren + 4] in ("[", "(")


def _initializes(tokens: Tokens, i: int, name: int) -> bool:
    """`int2 offset(0, row);` rather than the function `int2 offset(int a, int b)`."""
    vector = _VECTOR.fullmatch(tokens[i]) or tokens[i + 1] == "<"
    if not vector or tokens.kind(name) != "name" or tokens[name] == "operator":
        return False
    end = tokens.after(name + 1) - 1
    if tokens[end + 1] != ";" or end == name + 2:
        return False
    inside = range(name + 2, end)
    types = any(_TYPE.fullmatch(tokens[k]) and tokens[k + 1] != "(" for k in inside)
    pairs = any(tokens.kind(k) == tokens.kind(j) == "name" for k, j in itertools.pairwise(inside))
    return not types and not pairs


def _cast(tokens: Tokens, i: int, names: set[str]) -> None:
    """`(T)x`, where T may be qualified: (typename X::T)x, (metal::float4)x."""
    end = i + 1
    while tokens[end + 1] == "::" or tokens[end] in ("typename", "metal"):
        end += 2 if tokens[end + 1] == "::" else 1
    end = _vector_type(tokens, end, names)
    if not end or tokens[end] != ")":
        return
    before, operand = tokens.kind(i - 1), tokens[end + 1]
    if before == "name" and tokens[i - 1] not in _EXPRESSION_WORDS:
        return  # f(float4): a parameter list or sizeof
    if tokens[i - 1] in (")", "]", ">"):
        return
    if tokens.kind(end + 1) in ("name", "number") or operand in tuple("(-*+!~") + ("::",):
        tokens[i], tokens[end] = "metal::caster<", ">()->*"
