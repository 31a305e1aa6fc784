"""Where Metal and C++ spell a thing differently: literals, vector constructors, vector casts."""

import re

from tinyrvllm.soft.msl.tokens import Tokens

_SCALARS = "bool|float|half|bfloat|char|uchar|short|ushort|int|uint|long|ulong"
_VECTOR = re.compile(rf"(?:packed_)?(?:{_SCALARS})[234]")
_DECIMAL = re.compile(r"([\d.']+(?:[eE][+-]?\d+)?)([a-zA-Z]*)")
_HEXADECIMAL = re.compile(r"(0[xX][\da-fA-F.]+[pP][+-]?\d+)([a-zA-Z]*)")
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
    """
    names = _possible_vectors(tokens)
    for i in range(len(tokens)):
        x = tokens[i]
        vector = bool(_VECTOR.fullmatch(x)) or x in names
        if x == "vec" and tokens[i + 1] == "<" and tokens[i - 1] != "struct":
            after = tokens.after(i + 1)
            if tokens[after] == "(" and not _declares(tokens, i):
                tokens[i], tokens[after - 1] = "metal::make<vec", ">>"
        elif vector and tokens[i + 1] == "(" and not _declares(tokens, i):
            tokens[i] = f"metal::make<{x}>"
        elif x == "(" and tokens[i + 2] == ")":
            if _VECTOR.fullmatch(tokens[i + 1]) or tokens[i + 1] in names:
                _cast(tokens, i)


def _possible_vectors(tokens: Tokens) -> set[str]:
    names: set[str] = set()
    for i in range(len(tokens)):
        if tokens[i] in ("typename", "class") and tokens[i + 2] in (",", ">", "="):
            names.add(tokens[i + 1])
        elif tokens[i] == "using" and tokens[i + 2] == "=":
            names.add(tokens[i + 1])
        elif tokens[i] == "typedef":
            end = tokens.find(i, ";{")
            if tokens[end] == ";" and tokens.kind(end - 1) == "name":
                names.add(tokens[end - 1])
    return names


def _declares(tokens: Tokens, i: int) -> bool:
    """True where the name before a parenthesis is no constructor call: ~T(, operator T(, x.T(."""
    return tokens[i - 1] in ("operator", "~", ".", "->", "struct", "class", "decltype")


def _cast(tokens: Tokens, i: int) -> None:
    before, operand = tokens.kind(i - 1), tokens[i + 3]
    if before == "name" and tokens[i - 1] not in _EXPRESSION_WORDS:
        return  # f(float4): a parameter list or sizeof
    if tokens[i - 1] in (")", "]", ">"):
        return
    if tokens.kind(i + 3) in ("name", "number") or operand in ("(", "-", "*", "+", "!", "~", "::"):
        tokens[i], tokens[i + 2] = "metal::caster<", ">()->*"
