"""What this device, or Metal itself, does not run: an error that names it and its line."""

import functools
import re
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

from tinyrvllm.soft.msl.declarations import Declaration
from tinyrvllm.soft.msl.qualifiers import SPACES
from tinyrvllm.soft.msl.tokens import Tokens

_NOT_METAL = frozenset(
    re.findall(
        r"\w+",
        """double new delete virtual dynamic_cast typeid throw try catch goto thread_local""",
    )
)
_NOT_HERE = {
    "textures are": r"texture(?:1d|2d|3d|cube|_buffer)\w*|depth(?:2d|cube)\w*",
    "samplers are": r"sampler",
    "ray tracing is": r"intersector|intersection_query|acceleration_structure|primitive_acceleration\w*",
    "imageblocks are": r"imageblock\w*|threadgroup_imageblock",
    "visible function tables are": r"visible_function_table|intersection_function_table",
    "render pipelines are": r"vertex|fragment|object_data|mesh|render_grid",
}
_NOT_HERE_PATTERN = re.compile("|".join(_NOT_HERE.values()))


def words(tokens: Tokens) -> None:
    for i, token in enumerate(tokens.list):
        if token.kind != "name":
            continue
        after = i + 2 if tokens[i + 1] in ("const", "volatile") else i + 1
        if token.text in SPACES and tokens[after] in SPACES:
            raise tokens.error(after, "multiple address spaces specified for type")
        deleted = token.text == "delete" and tokens[i - 1] == "="
        if token.text in _NOT_METAL and not deleted:
            raise tokens.error(i, f"'{token.text}' is not supported in Metal")
        if _NOT_HERE_PATTERN.fullmatch(token.text) and _is_used_as_metal(tokens, i, token.text):
            what = next(w for w, p in _NOT_HERE.items() if re.fullmatch(p, token.text))
            raise tokens.error(i, f"'{token.text}': {what} not supported by the software device")


def _is_used_as_metal(tokens: Tokens, i: int, word: str) -> bool:
    """`texture2d<`, `sampler s`, `vertex V f(`; a variable may well be called `mesh`."""
    if tokens[i - 1] in (".", "->"):
        return False
    return tokens[i + 1] == "<" or tokens.kind(i + 1) == "name"


@functools.cache
def _standard_names() -> frozenset[str]:
    """The functions of our metal_stdlib, written out or by macros such as MSL_WIDE_1(T, exp, ...)."""
    headers = (Path(__file__).parents[1] / "include" / "msl").glob("*.h")
    declared = re.compile(r"MSL_INLINE[^(;]*?\b(\w+)\(|MSL_\w+\((?:T, )?(\w+)")
    found = (m for h in headers for m in declared.finditer(h.read_text("utf-8")))
    names = (m[1] or m[2] for m in found)
    return frozenset(name for name in names if len(name) > 1)  # not the macros' own parameters


def recursion(tokens: Tokens, declarations: list[Declaration]) -> None:
    """Metal has no recursion, be it through other functions. Overloads and templates that call
    their own name are none, and a function may overload one of metal_stdlib's.
    """
    functions = [d for d in declarations if d.kind == "function"]
    count = Counter(d.name for d in functions)
    plain = {
        d.name: d
        for d in functions
        if not d.template and count[d.name] == 1 and d.name not in _standard_names()
    }
    calls = {  # caller -> what it calls -> the last place
        name: {
            tokens[i]: i
            for i in range(*d.body)
            if tokens[i] in plain and tokens[i + 1] == "(" and tokens[i - 1] not in (".", "->")
        }
        for name, d in plain.items()
    }
    try:
        TopologicalSorter(calls).prepare()
    except CycleError as error:
        circle = error.args[1]  # each is called by the next
        place = max(calls[caller][name] for name, caller in pairwise(circle))
        raise tokens.error(
            place, f"recursive call of '{tokens[place]}' is not supported in Metal"
        ) from None
