"""Metal's [[attributes]]: read, then blanked, since C++ has no use for them."""

from typing import NamedTuple

from tinyrvllm.soft.msl.tokens import Tokens


class Argument(NamedTuple):
    text: str  # "" where the attribute has none
    position: int  # of its first token, for diagnostics


def take(tokens: Tokens, start: int, end: int) -> dict[str, Argument]:
    """Blanks every [[...]] in start..end; returns name -> argument."""
    found: dict[str, Argument] = {}
    i = start
    while i < end:
        if tokens[i] != "[[":
            i += 1
            continue
        after = tokens.after(i)
        j = i + 1
        while j < after - 1:
            name, at = tokens[j], j
            j += 1
            while tokens[j] == "::":  # [[clang::always_inline]]
                name, j = name + "::" + tokens[j + 1], j + 2
            argument = ""
            if tokens[j] == "(":
                argument, j = tokens.text(j + 1, tokens.after(j) - 1), tokens.after(j)
            found[name] = Argument(argument, at)
            j += tokens[j] == ","
        tokens.blank(i, after)
        i = after
    return found
