"""Methods for objects of one address space: `float get() const device { ... }`.

A CPU has one memory, so the qualifier means nothing here, and the copies that Metal needs for the
other spaces would be redefinitions: the first of several equal signatures in a class stays.
"""

from tinyrvllm.soft.msl.tokens import Tokens

_SPACES = ("thread", "device", "threadgroup", "constant")
_ENDS = ("{", ";", ":", "=")


def drop(tokens: Tokens) -> None:
    seen: dict[int, set[str]] = {}  # opening brace of a class -> signatures
    braces: list[int] = []
    for i in range(len(tokens)):
        if tokens[i] == "{":
            braces.append(i)
        elif tokens[i] == "}" and braces:
            braces.pop()
        elif tokens[i] in _SPACES and _qualifies(tokens, i):
            start = _start(tokens, i)
            signature = tokens.text(start, i)
            known = seen.setdefault(braces[-1] if braces else -1, set())
            if signature in known:
                tokens.blank(start, _end(tokens, i + 1))
            else:
                known.add(signature)
                tokens[i] = ""


def _qualifies(tokens: Tokens, i: int) -> bool:
    """Whether the word stands behind a parameter list: `) const device {`."""
    before, after = i - 1, i + 1
    while tokens[before] in ("const", "noexcept"):
        before -= 1
    while tokens[after] in ("const", "noexcept"):
        after += 1
    return tokens[before] == ")" and (tokens[after] in _ENDS or tokens[after] == "->")


def _start(tokens: Tokens, i: int) -> int:
    """The first token of the member whose qualifier is at `i`."""
    while i > 0 and tokens[i - 1] not in ("{", "}", ";", ""):
        if tokens[i - 1] == ":" and tokens[i - 2] in ("public", "private", "protected"):
            break
        i -= 1
    return i


def _end(tokens: Tokens, i: int) -> int:
    """The position after the member's body, its initializer list included."""
    initializers = False
    while tokens[i] != ";":
        if tokens[i] == "(":
            i = tokens.after(i)
        elif tokens[i] == "{":
            i = tokens.after(i)
            if not (initializers and tokens[i] in (",", "{")):  # a(b), c{d} { body }
                return i + (tokens[i] == ";")
        else:
            initializers |= tokens[i] == ":"
            i += 1
    return i + 1
