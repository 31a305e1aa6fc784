"""Functions that differ in address spaces only.

A CPU has one memory, so what Metal tells apart is here defined twice. Of methods qualified by a
space (`float get() const device { ... }`) the first of several equal signatures stays. Of free
functions whose parameters differ in spaces, and of specialisations of a type, the later ones are
left to the pass that checks spaces.
"""

import re

from tinyrvllm.soft.msl.declarations import Declaration
from tinyrvllm.soft.msl.tokens import Tokens

SPACES = ("thread", "device", "threadgroup", "constant")
_ENDS = ("{", ";", ":", "=", "->")


def methods(tokens: Tokens) -> None:
    braces: list[int] = []
    for i in range(len(tokens)):
        if tokens[i] == "{":
            braces.append(i)
        elif tokens[i] == "}" and braces:
            braces.pop()
        elif tokens[i] in SPACES and braces and _qualifies(tokens, i):
            start = _start(tokens, i)
            signature = re.escape(tokens.text(start, i))
            if re.search(r"[{};:]" + signature, tokens.text(braces[-1], start)):
                tokens.blank(start, _end(tokens, i))
            else:
                tokens[i] = ""


def overloads(tokens: Tokens, declarations: list[Declaration]) -> None:
    seen: set[str] = set()
    for d in declarations:
        if d.kind not in ("function", "type") or not (d.template or d.parameters[1]):
            continue
        head = d.parameters[1] or tokens.find(d.start, "{;")
        words = [tokens[i] for i in range(d.start, head)]
        if not set(SPACES) & set(words):
            continue
        text = " ".join(w for w in words if w not in ("device", "thread", "threadgroup"))
        signature = d.scope + re.sub(r"\b(constant|const)( (constant|const)\b)*", "const", text)
        if signature in seen:
            tokens.only_for_spaces(d.start, d.end)
        seen.add(signature)


def array_parameters(tokens: Tokens) -> None:
    """`f(threadgroup float tile[32])` -> `f(threadgroup float *tile)`: clang qualifies no array."""
    for i in range(len(tokens)):
        if tokens[i] not in SPACES:
            continue
        first = i  # what stands before the parameter tells it from a variable with two names
        while tokens[first - 1] in ("const", "volatile"):
            first -= 1
        if tokens[first - 1] not in ("(", ","):
            continue
        j = i
        while tokens.kind(j) == "name" or tokens[j] in ("::", "<"):
            j = tokens.after(j) if tokens[j] == "<" else j + 1
        if tokens[j] == "[" and tokens.kind(j - 1) == "name" and j > i + 2:
            after = tokens.after(j)
            if tokens[after] in (",", ")", "[["):
                tokens.list[j].text, tokens.list[j].kind = tokens[j - 1], "name"
                tokens.list[j - 1].text, tokens.list[j - 1].kind = "*", "sign"
                tokens.blank(j + 1, after)


def _qualifies(tokens: Tokens, i: int) -> bool:
    """Whether the word stands behind a parameter list: `) const device {`."""
    before, after = i - 1, i + 1
    while tokens[before] in ("const", "noexcept"):
        before -= 1
    while tokens[after] in ("const", "noexcept"):
        after += 1
    return tokens[before] == ")" and tokens[after] in _ENDS


def _start(tokens: Tokens, i: int) -> int:
    """The first token of the member whose qualifier is at `i`."""
    while tokens[i - 1] not in ("{", "}", ";", ":", ""):  # : behind public, private or protected
        i -= 1
    return i


def _end(tokens: Tokens, i: int) -> int:
    """The position after the member's body, its initializer list included."""
    while tokens[i] != ";":
        if tokens[i] == "(":
            i = tokens.after(i)
        elif tokens[i] == "{":
            i = tokens.after(i)
            if tokens[i] not in (",", "{"):  # a(b), c{d} { body }
                return i + (tokens[i] == ";")
        else:
            i += 1
    return i + 1
