"""Function constants: `constant bool flag [[function_constant(3)]];`."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tinyrvllm.soft.msl import attributes
from tinyrvllm.soft.msl.arithmetic import integer
from tinyrvllm.soft.msl.declarations import Declaration
from tinyrvllm.soft.msl.tokens import Tokens

TYPES = frozenset(
    re.findall(
        r"\w+",
        """bool char uchar short ushort int uint long ulong half float int8_t uint8_t int16_t uint16_t
        int32_t uint32_t int64_t uint64_t size_t""",
    )
)


@dataclass(frozen=True, slots=True)
class FunctionConstant:
    name: str
    type: str
    required: bool  # False where the source asks is_function_constant_defined first


def collect(tokens: Tokens, declarations: list[Declaration]) -> dict[int, FunctionConstant]:
    """Index -> constant. Each becomes MSL_FUNCTION_CONSTANT(type, name, index) of entry.h."""
    asked = {
        tokens[i + 2]: i
        for i in range(len(tokens))
        if tokens[i] == "is_function_constant_defined" and tokens[i + 1] == "("
    }
    found: dict[int, FunctionConstant] = {}
    for d in declarations:
        if d.kind != "variable" or d.parameters[1]:
            continue
        marks = [i for i in range(d.start, d.end) if tokens[i] == "[["]
        if not marks or tokens[marks[0] + 1] != "function_constant":
            continue
        text, start = attributes.take(tokens, marks[0], d.end)["function_constant"]
        index = integer(text)
        if index is None or not 0 <= index <= 65535:
            raise tokens.error(start, "function_constant needs an index between 0 and 65535")
        words = [tokens[i] for i in range(d.start, marks[0] - 1)]
        ctype = " ".join(w for w in words if w not in ("constant", "static", "const", "constexpr"))
        ctype = {"unsigned int": "uint", "unsigned": "uint"}.get(ctype, ctype)
        if ctype not in TYPES:
            raise tokens.error(
                d.start, f"a function constant of type '{ctype}' is not supported: use a scalar"
            )
        constant = FunctionConstant(d.name, ctype, d.name not in asked)
        if index in found and found[index] != constant:
            raise tokens.error(start, f"function_constant index {index} is used twice")
        found[index] = constant
        tokens.blank(d.start, marks[0])
        tokens[d.start] = f"MSL_FUNCTION_CONSTANT({ctype}, {d.name}, {index})"
    for i in range(len(tokens)):
        if tokens[i] == "is_function_constant_defined" and tokens[i + 1] == "(":
            name = tokens[i + 2]
            tokens.blank(i, tokens.after(i + 1))
            tokens[i] = f"msl_defined_{name}"
    return found


def as_macros(indices: Iterable[int], given: Mapping[int, float]) -> str:
    """The constants' values, for MSL_FUNCTION_CONSTANT in entry.h; 0 where none is given."""
    lines = ""
    for index in indices:
        value = given.get(index, 0)
        text = _float(value) if isinstance(value, float) else str(int(value))
        lines += f"#define MSL_FC_{index} {text}\n"
        lines += f"#define MSL_FC_DEFINED_{index} {int(index in given)}\n"
    return lines


def _float(value: float) -> str:
    if math.isnan(value):
        return "NAN"
    return f"({'-' * (value < 0)}INFINITY)" if math.isinf(value) else f"({value.hex()}f)"
