"""A jinja2 environment for templates that came with a model file: nothing they do may take long.

jinja2's sandbox keeps a template away from Python's insides and from our arguments. It does not
keep it from looping, or from doubling a string sixty times. Here every round of a loop, every call
of a macro and everything that a template builds is paid from a budget, which each rendering gets
anew; when it is spent, `BudgetError` ends the rendering. So does a clock, which only looks up when
something is paid: it works in any thread of any system.
"""

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from jinja2 import Template, nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_CHARACTERS: Final = 1 << 26  # of all strings that one rendering builds on its way
MAX_SECONDS: Final = 5.0
MAX_TEMPLATE: Final = 1 << 18  # characters; long templates have some 20,000
_STEP: Final = 100  # what a round of a loop costs, in characters
# What these build may be as large as the product of their arguments, not only the sum.
_MULTIPLYING: Final = ("batch", "center", "indent", "join", "replace", "round", "slice", "tojson")
_WIDE: Final = re.compile(r"\d{5}|\*")  # "%99999d" is short to write and long to fill


class BudgetError(Exception):
    """A template does more than the rendering of messages can need."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """jinja2's sandbox with a budget. `filters` and `functions` (globals) join jinja2's own."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(
        self,
        extensions: list[Any],
        filters: Mapping[str, Callable[..., Any]],
        functions: Mapping[str, Callable[..., Any]],
    ) -> None:
        # Optimised, jinja2 would compute constant expressions while it compiles.
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=extensions
        )
        self._budget = threading.local()
        self.finalize = self.paid
        self.globals |= functions
        self.filters |= filters
        for name in _MULTIPLYING:
            self.filters[name] = self._multiplying(self.filters[name])
        del self.globals["lipsum"], self.filters["format"]  # unbounded, and nobody's need

    def compile_bounded(self, source: str) -> Template:
        """The template with its payments put in. Raises BudgetError and jinja2's own errors."""
        self._renew_budget()
        if len(source) > MAX_TEMPLATE:
            raise BudgetError(f"it has {len(source)} characters; at most {MAX_TEMPLATE} are read")
        tree = _Payments().visit(self.parse(source))
        tree.set_environment(self)
        return self.from_string(tree)

    def render_bounded(self, template: Template, variables: Mapping[str, Any]) -> str:
        """Render with a new budget. Raises BudgetError and whatever a template can raise."""
        self._renew_budget()
        return template.render(variables)

    def _renew_budget(self) -> None:
        self._budget.characters = MAX_CHARACTERS
        self._budget.deadline = time.monotonic() + MAX_SECONDS

    def spend(self, characters: int) -> str:
        """Pay. The empty result is what this adds to the text where a template calls it."""
        self._budget.characters -= characters
        if self._budget.characters < 0:
            raise BudgetError("it loops or writes without end")
        if time.monotonic() > self._budget.deadline:
            raise BudgetError(f"it takes longer than {MAX_SECONDS:g} seconds")
        return ""

    def paid(self, value: Any) -> Any:
        """The value, after paying for what it is when written out."""
        self.spend(_size(value))
        return value

    def concat(self, pieces: Iterable[str]) -> str:
        """What jinja2 joins the text of a template, a block or a macro with."""
        return "".join(map(self.paid, pieces))

    def tilde(self, *values: Any) -> str:
        """The operator `~`."""
        return self.concat(str(self.paid(value)) for value in values)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The operators of `intercepted_binops`."""
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        if operator == "**":
            raise BudgetError("it raises a number to a power")
        if operator == "%" and isinstance(left, str):
            _check_widths(left)
        elif operator == "*" and not numbers:
            _check_product(left, right)
        result = self.paid(super().call_binop(context, operator, left, right))
        if numbers and abs(result) > 1 << 64:
            raise BudgetError("it computes with numbers of more than 64 bits")
        return result

    def call(self, context: Context, function: Any, *args: Any, **kwargs: Any) -> Any:
        """A call of a function, a macro or a method."""
        subject = getattr(function, "__self__", None)
        if isinstance(subject, str):
            _check_product(subject, *args, *kwargs.values())
        result = super().call(context, function, *args, **kwargs)
        return self.paid(result) if isinstance(result, str | list | dict) else result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """The method `format` of a string."""
        wrapper = super().wrap_str_format(value)
        if wrapper is not None:
            _check_widths(value.__self__)
        return wrapper

    def _multiplying(self, function: Callable[..., Any]) -> Callable[..., Any]:
        leading = 1 if hasattr(function, "jinja_pass_arg") else 0  # jinja2's own argument

        def checked(*args: Any, **kwargs: Any) -> Any:
            _check_product(*args[leading:], *kwargs.values())
            return self.paid(function(*args, **kwargs))

        checked.__dict__.update(function.__dict__)
        return checked


class _Payments(NodeTransformer):
    """Puts calls of `spend`, `paid` and `tilde` into a template's syntax tree."""

    def visit_For(self, node: Any) -> Any:
        self.generic_visit(node)
        step = _environment_call("spend", [nodes.Const(_STEP)])
        node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))
        return node

    visit_Macro = visit_CallBlock = visit_For

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        return _environment_call("tilde", node.nodes)

    def visit_List(self, node: Any) -> Any:
        self.generic_visit(node)
        return _environment_call("paid", [node])

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> Any:
        return self.visit_List(node) if node.ctx == "load" else self.generic_visit(node)


def _environment_call(name: str, arguments: list[nodes.Expr]) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None)


def _size(value: Any) -> int:
    """Characters of a value when written out; counting ends soon after MAX_CHARACTERS."""
    size, waiting = 0, [value]
    while waiting and size <= MAX_CHARACTERS:
        value = waiting.pop()
        size += len(value) if isinstance(value, str) else 8
        if isinstance(value, Mapping):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            waiting += value
    return size


def _check_product(subject: Any, *factors: Any) -> None:
    extents = [abs(f) if isinstance(f, int | float) else _size(f) for f in (subject, *factors)]
    if (1 + extents[0]) * (1 + sum(extents[1:])) > MAX_CHARACTERS:
        raise BudgetError("it repeats or fills a text too often")


def _check_widths(form: str) -> None:
    if _WIDE.search(form):
        raise BudgetError(f"it formats with a width that is too large: {form[:40]!r}")
