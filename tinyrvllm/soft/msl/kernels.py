"""The kernels of a unit: names, parameters, limits, explicit instantiations."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tinyrvllm.soft.msl import attributes
from tinyrvllm.soft.msl.arithmetic import integer
from tinyrvllm.soft.msl.attributes import Argument
from tinyrvllm.soft.msl.declarations import Declaration
from tinyrvllm.soft.msl.tokens import Tokens

BUFFER_SLOTS = 31  # Apple's limit
BUILTINS = frozenset(
    re.findall(
        r"\w+",
        """thread_position_in_grid threadgroup_position_in_grid thread_position_in_threadgroup
        threads_per_threadgroup dispatch_threads_per_threadgroup threads_per_grid
        threadgroups_per_grid thread_index_in_threadgroup simdgroup_index_in_threadgroup
        thread_index_in_simdgroup threads_per_simdgroup thread_execution_width
        simdgroups_per_threadgroup dispatch_simdgroups_per_threadgroup
        quadgroup_index_in_threadgroup thread_index_in_quadgroup quadgroups_per_threadgroup
        grid_origin grid_size""",
    )
)
# The return type of a kernel. The compiler must look into the body at once, which tells the size of
# its threadgroup memory (entry.h) even where the kernel is a template.
_DEDUCED = "MSL_KERNEL_RESULT"


@dataclass(frozen=True, slots=True)
class Param:
    name: str
    kind: str  # "buffer", "threadgroup" or the built-in's attribute
    index: int | None  # slot of a buffer or threadgroup argument
    access: str | None  # buffers: "read" or "read_write"
    type: str
    function_constant: str | None = None  # present only where this constant is true
    holds_addresses: bool = False  # an argument buffer: pointers to other buffers lie in it


@dataclass(frozen=True, slots=True)
class Kernel:
    name: str  # what the host asks for
    function: str  # its C++ expression, e.g. gemm<half, 4>
    base: str  # the function's own name, for the call graph
    params: tuple[Param, ...]
    max_total_threads: int | None
    place: tuple[str, int]  # file and line
    frame: int  # number of its function's threadgroup memory (MSL_STATIC_BYTES)


class _Template(NamedTuple):
    declaration: Declaration
    kernel: Kernel
    limit: Argument | None  # thread limit, which may hang on the template's arguments


def collect(tokens: Tokens, declarations: list[Declaration]) -> list[Kernel]:
    """All kernels that a host can ask for, their attributes blanked."""
    kernels: list[Kernel] = []
    templates: dict[str, _Template] = {}
    pointing = _types_with_pointers(tokens, declarations)
    for d in declarations:
        if d.kind == "function" and is_kernel(tokens, d):
            kernel, limit = _kernel(tokens, d, pointing)
            if d.template:
                templates[d.name] = _Template(d, kernel, limit)
            else:
                threads = None if limit is None else _integer(tokens, limit, "thread limit")
                kernels.append(replace(kernel, max_total_threads=threads))
        elif d.kind == "instantiation":
            kernels += _instantiation(tokens, d, templates)
    attributes.take(tokens, 0, len(tokens))  # other functions may have them, where they mean nothing
    return kernels


def _types_with_pointers(tokens: Tokens, declarations: list[Declaration]) -> set[str]:
    """Structs with a pointer to device or constant memory among their members' tokens."""
    types = {d.name: range(d.start, d.end) for d in declarations if d.kind == "type"}
    pointers = ("*", "&")
    found = {
        name
        for name, inside in types.items()
        if any(tokens[i] in ("device", "constant") for i in inside)
        and any(tokens[i] in pointers for i in inside)
    }
    more = found
    while more:
        left = {n: tokens.names(r.start, r.stop) for n, r in types.items() if n not in found}
        more = {n for n, words in left.items() if words & found}
        found |= more
    return found


def _kernel(
    tokens: Tokens, d: Declaration, pointing: set[str]
) -> tuple[Kernel, Argument | None]:
    """The kernel, and the text of its thread limit."""
    found = attributes.take(tokens, d.start, d.parameters[0])
    found |= attributes.take(tokens, d.parameters[1], d.body[0])
    result = max(i for i in range(d.start, d.parameters[0]) if tokens[i] in ("void", "kernel"))
    if tokens[result] == "void":
        tokens[result] = _DEDUCED
    place = tokens.list[d.parameters[0] - 1]
    kernel = Kernel(
        _host_name(found, d.name),
        d.scope + d.name,
        d.name,
        _params(tokens, d, pointing),
        None,
        (place.file, place.line),
        d.start,
    )
    return kernel, found.get("max_total_threads_per_threadgroup")


def is_kernel(tokens: Tokens, d: Declaration) -> bool:
    head = [tokens[i] for i in range(d.start, d.parameters[0])]
    return "kernel" in head or _DEDUCED in head


def _host_name(found: dict[str, Argument], name: str) -> str:
    if "host_name" not in found:
        return name
    return "".join(re.findall(r'"([^"]*)"', found["host_name"].text))


def _integer(tokens: Tokens, argument: Argument, what: str) -> int:
    value = integer(argument.text)
    if value is None:
        raise tokens.error(
            argument.position, f"{what} must be a literal integer, not '{argument.text}'"
        )
    return value


def _template_values(tokens: Tokens, d: Declaration, arguments: str) -> dict[str, str]:
    """Parameter name -> argument, or its default, of `template <int N = 1> ...` with `<arguments>`."""
    given = _top_level(arguments)
    values = {}
    for k, (start, end) in enumerate(_split(tokens, d.start + 2, tokens.after(d.start + 1) - 1)):
        text, _, default = tokens.text(start, end).partition("=")
        names = re.findall(r"\w+", text)
        if names:
            values[names[-1]] = [*given[k:], default][0]
    return values


def _top_level(arguments: str) -> list[str]:
    """The parts of "<a, b<c, d>, e>"."""
    parts, depth = [""], 0
    for c in arguments[1:-1]:
        depth += (c in "<(") - (c in ">)")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return parts


def _instantiation(
    tokens: Tokens, d: Declaration, templates: dict[str, _Template]
) -> list[Kernel]:
    """`template [[host_name("x")]] kernel void f<half>(...);`, also written with decltype."""
    names = [i for i in range(d.start, d.end) if tokens[i] in templates and tokens[i + 1] == "<"]
    if not names:
        return _deduced_instantiation(tokens, d, templates)
    template = templates[tokens[names[0]]]
    arguments = tokens.text(names[0] + 1, tokens.after(names[0] + 1))
    function, place = template.kernel.function + arguments, tokens.list[names[0]]
    name = _host_name(attributes.take(tokens, d.start, d.end), function)
    tokens.blank(d.start, d.end)
    threads = None
    if template.limit is not None:
        values = _template_values(tokens, template.declaration, arguments)
        threads = integer(template.limit.text, values)
    return [
        replace(
            template.kernel,
            name=name,
            function=function,
            max_total_threads=threads,
            place=(place.file, place.line),
        )
    ]


def _deduced_instantiation(
    tokens: Tokens, d: Declaration, templates: dict[str, _Template]
) -> list[Kernel]:
    """`template [[host_name("x")]] kernel void f(device half *, ...);`: the arguments are deduced.

    It becomes a constant pointer of that type to `f`, which deduces them alike.
    """
    names = [i for i in range(d.start, d.end) if tokens[i] in templates and tokens[i + 1] == "("]
    if not names:
        return []
    at, template, place = names[0], templates[tokens[names[0]]], tokens.list[names[0]]
    name = _host_name(attributes.take(tokens, d.start, d.end), template.kernel.name)
    pointer = f"msl_instance{d.start}"
    tokens.blank(d.start, at)
    tokens[at] = f"static constexpr void (*{pointer})"
    tokens[d.end - 1] = f"= &{template.kernel.function};"
    return [
        replace(
            template.kernel,
            name=name,
            function=f"*{pointer}",
            max_total_threads=None if template.limit is None else integer(template.limit.text),
            place=(place.file, place.line),
        )
    ]


def _params(tokens: Tokens, d: Declaration, pointing: set[str]) -> tuple[Param, ...]:
    params: list[Param] = []
    for start, end in _split(tokens, d.parameters[0] + 1, d.parameters[1] - 1):
        param = _param(tokens, start, end, params)
        holds = param.kind == "buffer" and bool(pointing & set(re.findall(r"\w+", param.type)))
        params.append(replace(param, holds_addresses=holds))
    for kind in ("buffer", "threadgroup"):
        slots = [p.index for p in params if p.kind == kind and p.function_constant is None]
        for twice in sorted({s for s in slots if slots.count(s) > 1}, key=str):
            raise tokens.error(
                d.parameters[0], f"two parameters of kernel '{d.name}' have [[{kind}({twice})]]"
            )
    return tuple(params)


def _split(tokens: Tokens, start: int, end: int) -> list[tuple[int, int]]:
    """The ranges between the commas that stand in no bracket."""
    bracket: Sequence[int] = ()
    out, begin = [], start
    for i in range(start, end):
        if i in bracket:
            continue
        if tokens[i] in ("(", "[", "[[", "{") or (tokens[i] == "<" and tokens.opens_template(i)):
            bracket = range(i, tokens.after(i))
        elif tokens[i] == ",":
            out.append((begin, i))
            begin = i + 1
    if begin < end:
        out.append((begin, end))
    return out


def _param(tokens: Tokens, start: int, end: int, before: list[Param]) -> Param:
    found = attributes.take(tokens, start, end)
    left = [i for i in range(start, end) if tokens[i]]
    if not left:
        raise tokens.error(start, "expected a parameter declaration")
    name = tokens[left[-1]]
    words = {tokens[i] for i in left}
    ctype = tokens.text(start, left[-1])
    condition = found.pop("function_constant", None)
    presence = None if condition is None else condition.text
    pointer = bool(words & {"*", "&"})
    for attribute, argument in found.items():
        if attribute in BUILTINS:
            return Param(name, attribute, None, None, ctype, presence)
        if attribute in ("buffer", "threadgroup"):
            index = _integer(tokens, argument, f"'{attribute}' attribute index")
            return _memory(tokens, start, Param(name, attribute, index, None, ctype, presence), words)
        if attribute in ("maybe_unused", "align", "alignas"):
            continue
        raise tokens.error(
            start, f"attribute '{attribute}' is not supported on a kernel parameter"
        )
    if pointer and words & {"device", "constant", "threadgroup"}:  # Metal numbers these itself
        kind = "threadgroup" if "threadgroup" in words else "buffer"
        taken = {p.index for p in before if p.kind == kind}
        index = next(i for i in itertools.count() if i not in taken)
        return _memory(tokens, start, Param(name, kind, index, None, ctype, presence), words)
    raise tokens.error(
        start, f"kernel parameter '{name}' has no [[buffer(n)]] or built-in attribute"
    )


def _memory(tokens: Tokens, at: int, p: Param, words: set[str]) -> Param:
    spaces = {"device", "constant"} if p.kind == "buffer" else {"threadgroup"}
    if p.index is None or p.index >= BUFFER_SLOTS:
        raise tokens.error(
            at,
            f"'{p.kind}' attribute parameter is out of bounds: must be between 0 and "
            f"{BUFFER_SLOTS - 1}",
        )
    if not (words & spaces and words & {"*", "&"}):
        raise tokens.error(
            at,
            f"invalid type '{p.type}' for {p.kind} parameter '{p.name}': it needs a pointer or "
            f"reference in address space {' or '.join(sorted(spaces, reverse=True))}",
        )
    access = None
    if p.kind == "buffer":
        access = "read" if words & {"constant", "const"} else "read_write"
    return Param(p.name, p.kind, p.index, access, p.type, p.function_constant)
