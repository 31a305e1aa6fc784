"""`struct P { int a; P() = default; };` is an aggregate in Metal's C++14, and none in C++20.

Our headers need C++20, so a struct whose constructors are all defaulted loses them.
"""

from tinyrvllm.soft.msl.tokens import Tokens


def restore(tokens: Tokens) -> None:
    for i in range(len(tokens)):
        if tokens[i] in ("struct", "class") and tokens.kind(i + 1) == "name":
            brace = tokens.find(i, "{;:(")
            found = _constructors(tokens, i + 1, brace) if tokens[brace] == "{" else []
            if all(tokens.text(end - 3, end) == "=default;" for _, end in found):
                for start, end in found:
                    tokens.blank(start, end)


def _constructors(tokens: Tokens, name: int, brace: int) -> list[tuple[int, int]]:
    """The ranges of the members of the class body at `brace` that are its constructors."""
    found, start, i = [], brace + 1, brace + 1
    end = tokens.after(brace)
    while i < end:
        if tokens[i] == tokens[name] and tokens[i - 1] not in ("~", "::", "<", ","):
            paren = tokens.after(i + 1) if tokens[i + 1] == "<" else i + 1
            if tokens[paren] == "(" and tokens[i - 1] not in ("return", "=", "("):
                found.append((start, tokens.find(i, ";{") + 1))
        if tokens[i] in ("{", "(", "["):
            i = tokens.after(i)
        else:
            i += 1
        if tokens[i - 1] in (";", "}"):
            start = i
    return found
