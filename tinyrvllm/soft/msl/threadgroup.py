"""Threadgroup variables: from declarations in a kernel to places in the threadgroup's memory.

`threadgroup float tile[8][T];` becomes a reference into the arena that the threads of one
threadgroup share. Where it lies is computed by the C++ compiler (msl::place in entry.h), since
the size may hang on template arguments; no two variables overlap, as on a GPU.
"""

from tinyrvllm.soft.msl.declarations import Declaration
from tinyrvllm.soft.msl.kernels import is_kernel
from tinyrvllm.soft.msl.tokens import Tokens


def rewrite(tokens: Tokens, declarations: list[Declaration]) -> None:
    for d in declarations:
        if d.kind == "variable" and tokens[d.start] == "threadgroup" and not d.parameters[1]:
            if "*" not in {tokens[i] for i in range(d.start, d.end)}:
                raise tokens.error(
                    d.start,
                    "program scope variable must reside in constant address space, not threadgroup",
                )
        elif d.kind == "function":
            _function(tokens, d, is_kernel(tokens, d))


def _function(tokens: Tokens, d: Declaration, is_kernel: bool) -> None:
    count = 0
    for i in range(*d.body):
        if tokens[i] == "alignas":
            _alignment(tokens, i)
        if tokens[i] != "threadgroup":
            continue
        first = i  # `static`, `volatile` and `const` may stand before it
        while tokens[first - 1] in ("const", "volatile", "static", "constexpr"):
            first -= 1
        if tokens[first - 1] not in ("{", "}", ";", ":", ")", ""):
            continue
        name = _first_name(tokens, i)
        if name is None:
            continue
        if not is_kernel:
            raise tokens.error(
                i,
                f"variable '{tokens[name]}' in the threadgroup address space cannot be declared "
                f"in the non-kernel function '{d.name}'",
            )
        count = _statement(tokens, i, name, count)
    if count:
        _choose_branches(tokens, d)
        tokens[d.body[0]] = "{ struct msl_frame {};"
        tokens[d.body[1] - 1] = f"MSL_STATIC_BYTES({d.start}, {count}) }}"


def _alignment(tokens: Tokens, i: int) -> None:
    """`alignas(16) threadgroup float tile[64];`: 16 is what every threadgroup variable has here."""
    end = tokens.after(i + 1)
    if tokens[end] == "threadgroup":
        specifier = tokens.text(i, end)
        tokens.blank(i, end)
        tokens[i] = (
            f"{{ struct {specifier} msl_aligned {{}}; static_assert(alignof(msl_aligned) <= 16, "
            '"threadgroup variables lie at multiples of 16 bytes here"); }'
        )


def _choose_branches(tokens: Tokens, d: Declaration) -> None:
    """`if (FLAG)` on a bool template parameter: only the branch taken has threadgroup variables."""
    flags = {tokens[i + 1] for i in range(d.start, d.parameters[0]) if tokens[i] == "bool"}
    for i in range(*d.body):
        if tokens[i] == "if" and tokens[i + 2] in flags and tokens[i + 3] == ")":
            tokens[i] = "if constexpr"


def _first_name(tokens: Tokens, i: int) -> int | None:
    """The first declared name, or None where this is no declaration of a variable.

    A pointer or reference *to* threadgroup memory is an ordinary local variable.
    """
    j = i
    while tokens[j] not in ("[", ",", ";", "*", "&", "=", "(", "{", ")", ""):
        j = tokens.after(j) if tokens[j] == "<" else j + 1
    return j - 1 if tokens[j] in ("[", ",", ";") and j > i + 2 else None


def _statement(tokens: Tokens, i: int, name: int, count: int) -> int:
    """Rewrites one declaration statement; returns the number of variables so far."""
    end = tokens.find(i, ";")
    ctype, out = tokens.text(i + 1, name), ""
    while tokens[name - 1] != ";":
        after = name + 1
        while tokens[after] == "[":
            after = tokens.after(after)
        dimensions = tokens.text(name + 1, after)
        if tokens.text(after, after + 4) == "={0}":  # Apple's compiler takes it, and writes nothing
            after += 4
        if tokens[after] not in (",", ";"):
            raise tokens.error(after, "initializer for threadgroup variable is not allowed")
        kind = f"msl_type{count}"
        out += f"typedef threadgroup {ctype} {kind}{dimensions}; "
        out += f"MSL_THREADGROUP({tokens[name]}, {kind}, {count}); "
        count += 1
        name = after + 1
    tokens.blank(i, end)
    tokens[i] = out.removesuffix("; ")
    return count
