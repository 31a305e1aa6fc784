"""The front end's C++, once more: what NVRTC must have said differently from clang.

| Metal, or the front end for clang | here | why |
|---|---|---|
| `v.zx`, `v.xy = w` | `v.get<2, 0>()`, `v.set<0, 1>() = w` | NVRTC's vectors are classes |
| `1.0f16` | `half(1.0f)` | it has no half |
| `_Pragma("clang loop unroll(full)")` | `_Pragma("unroll")` | the same, in its words |
| names of metal_stdlib | in namespace msl_user | CUDA has `max`, `exp`, ... at global scope |
"""

import re

from tinyrvllm.soft.msl.tokens import Tokens

_UNROLL = re.compile(r"(?:GCC |clang loop )?unroll(?:\(full\)|\(enable\))?")
_SWIZZLE = re.compile(r"[xyzw]{2,4}|[rgba]{2,4}")
_ASSIGNS = ("=", "+=", "-=", "*=", "/=")
_HALF = re.compile(r"(.*\d\.?)f16")
_PLACES = {letter: place for place, letter in enumerate("xyzw")} | {
    letter: place for place, letter in enumerate("rgba")
}
# Functions that both Metal and CUDA have: inside this namespace the names mean Metal's.
_SHARED_NAMES = re.findall(
    r"\w+",
    """abs acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh cospi exp exp10 exp2 fabs fdim
    floor fma fmax fmin fmod frexp ilogb isfinite isinf isnan ldexp log log10 log2 max min modf
    nextafter pow rint round rsqrt signbit sin sincos sinh sinpi sqrt tan tanh trunc""",
)
OPEN = "namespace msl_user { " + " ".join(f"using metal::{name};" for name in _SHARED_NAMES)
CLOSE = "}"


def for_nvrtc(code: str, filename: str) -> str:
    """`code` is Unit.code; lines stay where they are."""
    tokens = Tokens(code, filename)
    members = _member_names(tokens)
    for i, token in enumerate(tokens.list):
        if token.kind == "name" and tokens[i - 1] == "." and token.text not in members:
            if _SWIZZLE.fullmatch(token.text):
                _swizzle(tokens, i)
        elif token.kind == "number" and (match := _HALF.fullmatch(token.text)):
            tokens[i] = f"half({match[1]}f)"
        elif token.text == "_Pragma" and _UNROLL.fullmatch(tokens[i + 2].strip('"')):
            tokens[i + 2] = '"unroll"'
    _leave_for_metal(tokens)
    return tokens.source()


def _member_names(tokens: Tokens) -> set[str]:
    """Names that stand somewhere without a dot before them: a struct's members may be called so."""
    return {
        t.text
        for i, t in enumerate(tokens.list)
        if t.kind == "name" and tokens[i - 1] not in (".", "->")
    }


def _swizzle(tokens: Tokens, i: int) -> None:
    places = ", ".join(str(_PLACES[letter]) for letter in tokens[i])
    verb = "set" if tokens[i + 1] in _ASSIGNS else "get"
    tokens[i] = f"template {verb}<{places}>()"


def _leave_for_metal(tokens: Tokens) -> None:
    """A source that adds to namespace metal does so outside of its own namespace."""
    for i in range(len(tokens)):
        if tokens[i] == "namespace" and tokens[i + 1] == "metal" and tokens[i + 2] == "{":
            end = tokens.after(i + 2) - 1
            tokens[i] = CLOSE + " namespace"
            tokens[end] += " namespace msl_user {"


