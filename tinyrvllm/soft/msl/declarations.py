"""Finds the declarations at namespace scope: functions, types, variables, instantiations."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile

from tinyrvllm.soft.msl.tokens import Tokens

NOWHERE = (0, 0)  # the tokens of what is not there
_TYPE_KEYWORDS = ("struct", "class", "union", "enum")
_NOT_A_FUNCTION = ("decltype", "alignas", "static_assert", "__attribute__", "requires", "sizeof")


@dataclass(frozen=True, slots=True)
class Declaration:
    """Token ranges of one declaration; `end` and the other ends are exclusive."""

    kind: str  # function, type, variable or instantiation
    name: str
    scope: str  # "outer::inner::", or "" outside every namespace
    start: int
    end: int
    parameters: tuple[int, int] = NOWHERE  # with their parentheses; functions only
    body: tuple[int, int] = NOWHERE  # with its braces; functions only
    template: bool = False


def scan(tokens: Tokens) -> Iterator[Declaration]:
    scopes: list[str] = []
    i = 0
    while i < len(tokens):
        opened = _namespace(tokens, i)
        if opened is not None:
            scopes.append(opened[0])
            i = opened[1]
        elif tokens[i] == "}":
            if not scopes:
                raise tokens.error(i, "extraneous closing brace ('}')")
            scopes.pop()
            i += 1
        elif tokens[i] == ";":
            i += 1
        else:
            declaration = _declaration(tokens, i, "".join(scopes))
            yield declaration
            i = declaration.end


def _namespace(tokens: Tokens, i: int) -> tuple[str, int] | None:
    """The scope that opens here as ("name::", position after its brace), if one does."""
    if tokens[i] == "extern" and tokens.kind(i + 1) == "string" and tokens[i + 2] == "{":
        return "", i + 3
    j = i + 1 if tokens[i] == "inline" else i
    if tokens[j] != "namespace":
        return None
    brace = tokens.find(j, "{;")
    if tokens[brace] != "{":  # namespace a = b;
        return None
    name = tokens.text(j + 1, brace)
    return (name + "::" if name else ""), brace + 1


def _declaration(tokens: Tokens, start: int, scope: str) -> Declaration:
    i, parameters, is_type, assigned = start, NOWHERE, False, False
    template = tokens[start] == "template" and tokens[start + 1] == "<"
    if tokens[start] == "template" and not template:
        end = tokens.find(start, ";") + 1
        return Declaration("instantiation", "", scope, start, end)
    while tokens[i] not in (";", ""):
        x = tokens[i]
        template_arguments = x == "<" and not assigned and tokens.opens_template(i)
        if template_arguments or x in ("[[", "["):
            i = tokens.after(i)
        elif x == "(":
            after = tokens.after(i)
            if not (parameters[1] or is_type or assigned) and _names_a_function(tokens, i):
                parameters = (i, after)
            i = after
        elif x == "{":
            after = tokens.after(i)
            if parameters[1] and not assigned:
                name = _name_before(tokens, parameters[0])
                return Declaration(
                    "function", name, scope, start, after, parameters, (i, after), template
                )
            i = after
        else:
            is_type |= x in _TYPE_KEYWORDS and not parameters[1]
            assigned |= x == "="
            i += 1
    kind = "type" if is_type or tokens[start] in ("using", "typedef") else "variable"
    name = _declared_name(tokens, start, i, parameters)
    return Declaration(kind, name, scope, start, i + 1, parameters, template=template)


def _names_a_function(tokens: Tokens, paren: int) -> bool:
    before = paren - 1
    if "operator" in (tokens[before - 1], tokens[before - 2]):  # operator<, operator[]
        return True
    return tokens[before] == ">" or (
        tokens.kind(before) == "name" and tokens[before] not in _NOT_A_FUNCTION
    )


def _name_before(tokens: Tokens, paren: int) -> str:
    """The function's name, less template arguments; the last sign of an operator."""
    i = paren - 1
    is_template = tokens[i] == ">" and "operator" not in (tokens[i - 1], tokens[i - 2])
    return tokens[tokens.opening(i) - 1] if is_template else tokens[i]


def _declared_name(tokens: Tokens, start: int, end: int, parameters: tuple[int, int]) -> str:
    if parameters[1]:
        return _name_before(tokens, parameters[0])
    if tokens[start] == "using":
        return tokens[start + 1]
    for i in range(start, end):
        if tokens[i] in _TYPE_KEYWORDS and tokens[start] != "typedef":
            if tokens[i] in ("class", "struct") and tokens[i - 1] in ("<", ",", "enum"):
                continue  # a template parameter, or enum class
            after = (j for j in range(i + 1, end) if tokens.kind(j) == "name")
            return tokens[next((j for j in after if tokens[j] not in _TYPE_KEYWORDS), end)]
    declarator: Iterable[int] = range(start, end)
    if tokens[start] != "typedef":
        declarator = takewhile(lambda i: tokens[i] not in ("=", "[", "[["), declarator)
    names = [tokens[i] for i in declarator if tokens.kind(i) == "name"]
    return names[-1] if names else ""
