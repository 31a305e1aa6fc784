"""Integers that Metal source writes as arithmetic: `(100 + 3)`, `(BM * BN * 32)`."""

import re
from collections.abc import Mapping
from types import MappingProxyType

_LITERAL = re.compile(r"\b(?:0[xX]([0-9a-fA-F]+)|(\d+))[uUlL]*\b")
_NAME = re.compile(r"\b[A-Za-z_]\w*")


def integer(text: str, values: Mapping[str, str] = MappingProxyType({})) -> int | None:
    """The value of `text`, in which `values` stand for names; None where it is no arithmetic."""
    for _ in values:  # a value may be a name again
        text = _NAME.sub(lambda m: f"({values.get(m[0], m[0])})", text)
    text = _LITERAL.sub(lambda m: str(int(m[1], 16) if m[1] else int(m[2])), text)
    if not re.fullmatch(r"[\d\s()+*/%<>&|-]+", text):
        return None
    try:
        return int(eval(text.replace("/", "//")))  # digits and signs of arithmetic only
    except (SyntaxError, ArithmeticError, TypeError):
        return None
