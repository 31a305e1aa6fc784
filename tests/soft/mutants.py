"""One change in one place: what `mutate.py` does to a file, Python or C++.

A comparison moved or turned, a condition negated, a number or one of Metal's constants off by one,
two arguments or two messages swapped, a call or a result dropped. Changes that nobody can see are not made: texts of errors, annotations,
type checks, numbers of a printed table.
"""

import ast
import copy
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Change = tuple[int, str, str]  # line, what was changed, the whole new text


@dataclass(frozen=True)
class Mutant:
    file: str  # below tinyrvllm
    line: int
    what: str
    text: str  # of the whole changed file

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}"


# ---- Python

_TURNED: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
}  # fmt: skip


def of_python(source: str) -> Iterator[Change]:
    """Each change, with where it is: "turned: x < low in clip", "one more: 3 of x = 3 in clip"."""
    tree = ast.parse(source)
    for send, other in itertools.pairwise(_sends(tree)):
        if send.attr != other.attr:
            new = f"{ast.unparse(send.value)}.{other.attr}"
            yield send.lineno, f"{send.attr} sends {other.attr}", _replaced(source, send, new)
    for node, statement, function in _visible(tree, "", "module"):
        for what, place, new in _changes(node):
            if new != ast.unparse(place):
                where = (
                    f"of {statement} in {function}"
                    if isinstance(node, ast.Constant)
                    else f"in {function}"
                )
                yield place.lineno, f"{what}: {_start(node)} {where}", _replaced(source, place, new)


def _sends(tree: ast.AST) -> list[ast.Attribute]:
    """`send.name` wherever it stands, in order."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    sends = [node for node in found if ast.unparse(node.value).endswith("send")]
    return sorted(sends, key=lambda node: (node.lineno, node.col_offset))


def _start(node: ast.AST) -> str:
    return ast.unparse(node).splitlines()[0][:60]


def _visible(
    node: ast.AST, statement: str, function: str
) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    """Nodes whose change a caller can see, with the statement and the function around them."""
    for name, child in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases"):
            continue
        for item in child if isinstance(child, list) else [child]:
            if isinstance(item, ast.keyword) and item.arg in ("strict", "stacklevel"):
                continue
            hidden = (ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Raise, ast.Assert)
            if not isinstance(item, ast.AST) or isinstance(item, hidden):
                continue
            if isinstance(item, ast.If) and ast.unparse(item.test) == "TYPE_CHECKING":
                continue
            inner, outer = statement, function
            if isinstance(item, ast.FunctionDef | ast.ClassDef):
                outer = item.name if function == "module" else f"{function}.{item.name}"
            if isinstance(item, ast.stmt):
                inner = _start(item)
            if isinstance(item, ast.expr | ast.stmt):
                yield item, inner, outer
            yield from _visible(item, inner, outer)


def _changes(node: ast.expr | ast.stmt) -> Iterator[tuple[str, ast.expr, str]]:
    """(what, the expression that changes, its new text)."""

    def with_field(name: str, value: object) -> str:
        changed = copy.copy(node)
        setattr(changed, name, value)
        return f"({ast.unparse(changed)})"

    match node:
        case ast.Compare(ops=[op]) if type(op) in _TURNED:
            yield "turned", node, with_field("ops", [_TURNED[type(op)]()])
        case ast.BoolOp():
            yield (
                "and/or",
                node,
                with_field("op", ast.Or() if isinstance(node.op, ast.And) else ast.And()),
            )
        case ast.BinOp() if type(node.op) in _ARITHMETIC:
            yield "arithmetic", node, with_field("op", _ARITHMETIC[type(node.op)]())
        case ast.Constant(value=bool()):
            yield "other truth", node, str(not node.value)
        case ast.Constant(value=int()):
            yield "one more", node, str(node.value + 1)
        case ast.If() | ast.While():
            yield "negated", node.test, f"(not ({ast.unparse(node.test)}))"
        case ast.Expr(value=ast.Call() as call):
            yield "dropped", call, "None"
        case ast.Return(value=ast.Constant(value=value)) if not value:
            pass  # None is as false
        case ast.Return(value=value) if value is not None:
            yield "nothing returned", value, "None"
        case ast.Attribute(value=ast.Name("api"), attr=name) if name.startswith("MTL"):
            yield "one more", node, f"({ast.unparse(node)} + 1)"
        case ast.Call(args=[_, _, *_], keywords=[]):
            first, second, *rest = node.args
            alike = ast.unparse(first) == ast.unparse(second)
            if not alike and ast.unparse(node.func) not in ("min", "max", "declare"):
                yield "swapped", node, with_field("args", [second, first, *rest])


def _replaced(source: str, place: ast.expr, new: str) -> str:
    """The source with one expression replaced; columns of the syntax tree count bytes."""
    lines = source.encode().splitlines(keepends=True)
    first, last = place.lineno - 1, (place.end_lineno or 0) - 1
    before, after = lines[first][: place.col_offset], lines[last][place.end_col_offset :]
    return b"".join([*lines[:first], before, new.encode(), after, *lines[last + 1 :]]).decode()


# ---- C++

_RULES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (r" < ", " <= "), (r" <= ", " < "), (r" == ", " != "), (r" != ", " == "), (r" \+ ", " - "),
    (r" - ", " + "), (r" & ", " | "), (r" \| ", " & "), (r" && ", " || "), (r" >> ", " << "),
    (r"(?<![\w.])(\d+)(?=u?\b[^\w.])", lambda m: str(int(m[1]) + 1)),
    (r"^  +[\w>.\[\]-]+ [|&]?= [^;]*;$", ";"),
)  # fmt: skip


_ELSEWHERE = ("#ifdef _WIN32", "#if defined(_WIN32)", "#ifdef MSL_CUDA")  # not compiled here


def of_header(source: str) -> Iterator[Change]:
    lines = source.split("\n")
    elsewhere: list[bool] = []  # of each #if around the line
    for number, line in enumerate(lines):
        code = line.split("//")[0].rstrip("\\ ")
        if code.startswith("#if"):
            elsewhere.append(code.startswith(_ELSEWHERE))
        elif code.startswith("#else"):
            elsewhere[-1] = False
        elif code.startswith("#endif"):
            elsewhere.pop()
        if any(elsewhere) or not code.strip() or code.startswith("#"):
            continue
        if "static_assert" in code or '"' in code:
            continue
        for pattern, new in _RULES:
            for match in re.finditer(pattern, code):
                replaced = new(match) if callable(new) else new
                changed = code[: match.start()] + replaced + line[match.end() :]
                text = "\n".join([*lines[:number], changed, *lines[number + 1 :]])
                yield number + 1, f"{match[0].strip()} in {code.strip()[:60]}", text
