"""A linter: is a shader plain MSL, by the rules of Apple's language specification?

    python -m tests.kernels.msl_rules [file.metal ...]

The software device reads more than Apple's compiler does: it stands on a C++20 compiler. So every name
that a shader does not declare itself must be in msl_names.tsv, with the version of the language that
has it and the section of the specification (version 4, 2025) that says so; and the rules below hold,
each with its section. They work on the text, comments taken out and our own headers put in.
"""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import tinyrvllm
from tests.kernels.msl_text import (
    TENSORS,
    Source,
    blank,
    closing,
    declared,
    kernels,
    source,
    split,
    statements,
)
from tinyrvllm.mtl.library import splice

SHADERS = Path(tinyrvllm.__file__).parent / "shaders"
SPACES = "device|constant|threadgroup|thread"
SCALARS = r"(?:uint|ushort|int|short|uchar|char|float|half|bool)"


def names() -> dict[str, float]:
    """The words of MSL that our shaders use -> the version that has them."""
    table = Path(__file__).with_name("msl_names.tsv").read_text(encoding="utf-8").splitlines()[1:]
    rows = [line.split("\t") for line in table]
    return {name: float(since) for found, since, _, _ in rows for name in found.split()}


Finding = tuple[int, str]  # position in the code, what is wrong
Rule = Callable[[Source], Iterator[Finding]]


def known_names(s: Source) -> Iterator[Finding]:
    """6, 2, 5: a name is the shader's own, or in the table, from a version that is there."""
    table, own = names(), declared(s.code)
    code = re.sub(r"^\s*#\s*(?:pragma|include|line)[^\n]*", blank, s.code, flags=re.MULTILINE)
    code = re.sub(
        r"^\s*#\s*(?:define|if|ifdef|ifndef|else|elif|endif)\b", blank, code, flags=re.MULTILINE
    )
    for m in re.finditer(r"(?<![\w.])[A-Za-z_]\w*|(?<=\.)[A-Za-z_]\w*", code):
        name = m[0]
        member = s.code[m.start() - 1] == "."
        if member and (re.fullmatch(r"[xyzw]{1,4}|[rgba]{1,4}", name) or name in own):
            continue
        if name not in table and name not in own and not re.fullmatch(r"_Pragma|template", name):
            yield m.start(), f"{name!r} is not declared here, nor in msl_names.tsv"
        elif table.get(name, 0) > s.version and name not in own:
            yield m.start(), f"{name!r} came with {table[name]}, this is {s.version}"


def words_of_cpp(s: Source) -> Iterator[Finding]:
    """1.5.4: what C++ has and Metal has not."""
    for word, why in {
        r"\b(?:double|long\s+long|long\s+double)\b": "2.1: MSL has no such type",
        r"\b(?:new|delete|virtual|throw|try|catch|goto|dynamic_cast|typeid|noexcept|register)\b": "1.5.4",
        r"\b(?:thread_local|static_cast\s*<[^>]*[*&])": "1.5.4: not in MSL",
        r"\bstd::": "1.5.4: the C++ standard library is not there",
        r"\bsize_t\b|\bptrdiff_t\b": "not in the arguments of kernels: we use uint and ulong",
        r"\bbfloat": "2.1: bfloat is Metal 3.1's; shift a ushort",
        r"\bsimdgroup_async_copy": "gone since Xcode 15",
        r"(?:^|[=(,{;])\s*\[[&=\w]*\]\s*\(": "1.5.4: lambda expressions are Metal 3.2's",
        r"\b(?:concept|requires|consteval|constinit|co_await|co_yield)\b|<=>": "C++20 is not MSL",
        r"\bstruct\s+\w+\s*:|\bclass\b(?!\s*\w*[,>])": "1.5.4: no derived classes",
        r"\bmain\s*\(": "1.5.4: no function may be called main",
        r"\b(?:vertex|fragment|sampler|texture|threadgroup_imageblock|ray_data|object_data)\b":
            "4, 5.1: a word of Metal's that no kernel needs: choose another name",
    }.items():  # fmt: skip
        for m in re.finditer(word, s.code, re.MULTILINE):
            yield m.start(), f"{m[0].strip()!r}: {why}"
    if s.version < TENSORS:
        for m in re.finditer(r"if\s+constexpr|auto\s*&?\s*\[|\binline\s+constexpr", s.code):
            yield m.start(), f"{m[0]!r}: C++17 is Metal 4's (1.5)"


def literals(s: Source) -> Iterator[Finding]:
    """2.1: a floating-point literal says which type it has."""
    for m in re.finditer(r"(?<![\w.])(?:\d+\.\d*|\.\d+|\d+e[+-]?\d+)(?:e[+-]?\d+)?(\w*)", s.code):
        if m[1].lower() not in ("f", "h"):
            yield m.start(), f"the literal {m[0]} has no f or h"


def spaces_of_pointers(s: Source) -> Iterator[Finding]:
    """4: every pointer and reference says in one word which memory it points to."""
    types = rf"(?:packed_)?{SCALARS}[234]?|ulong2?|void|atomic_uint|simdgroup_\w+(?:<[^>]*>)?"
    structs = "|".join(re.findall(r"\b(?:struct|typename)\s+(\w+)", s.code)) or "void"
    for m in re.finditer(
        rf"(?<![\w:])((?:\w+\s+)*)\b({types}|{structs})\s*[*&]+\s*\(?&?\w+\s*(?=[,)=;\[])", s.code
    ):
        spaces = len(re.findall(rf"\b(?:{SPACES})\b", m[1]))
        if spaces != 1:
            yield m.start(), f"{m[0].strip()!r} has {'two address spaces' if spaces else 'none'}"
        elif "**" in m[0]:
            yield m.start(), f"{m[0].strip()!r}: the inner pointer has none; say *thread *"


def threadgroup_variables(s: Source) -> Iterator[Finding]:
    """4.4: declared in the body of a kernel and nowhere else, without an initialiser."""
    bodies = [(start, end) for _, start, end in kernels(s)]
    for m in re.finditer(
        r"(?<=[{};])\s*(?:alignas\(\w+\)\s*)?threadgroup\s+[\w<>]+\s+\w+\s*([\[;=,])", s.code
    ):
        if not any(start < m.start() < end for start, end in bodies):
            yield m.start(), f"{m[0].strip()!r}: a threadgroup variable outside a kernel"
        if "=" in s.code[m.start() : s.code.find(";", m.start())]:
            yield m.start(), f"{m[0].strip()!r}: a threadgroup variable takes no initialiser"


def threadgroup_alignment(s: Source) -> Iterator[Finding]:
    """2.5: a threadgroup array of scalars lies at multiples of 2 or 4 bytes; vectors need 8 or 16."""
    if not re.search(r"\(threadgroup\s+(?:const\s+)?\w+[24]\s*\*\)", s.code):
        return
    for _, start, end in kernels(s):
        body = s.code[start:end]
        for m in re.finditer(rf"(?<=[{{}};])\s*threadgroup\s+{SCALARS}\s+(\w[^;]*);", body):
            for declarator in split(m[1]):
                name = declarator.split("[")[0].strip()
                uses = re.finditer(rf"\b{name}\b((?:\[[^\[\]]*\])*)", body[m.end() :])
                if any(use[1].count("[") < declarator.count("[") for use in uses):
                    yield start + m.start(), f"{name!r} is handed on: say alignas(16)"


def program_scope(s: Source) -> Iterator[Finding]:
    """4.2, 5.8.1: variables of program scope are constant, with a value or a function constant."""
    indices: dict[str, str] = {}
    for start, statement in statements(s.code):
        if statement.strip() in (";", "}") or statement.endswith("}"):
            continue
        if "(" in statement.split("=")[0].split("[[")[0]:
            continue
        if re.match(r"\s*(?:using|struct|enum|template|typedef)\b", statement):
            continue
        if not re.match(r"\s*constant\b", statement):
            yield start, f"{statement.strip()!r}: a variable of program scope is constant"
        found = re.search(r"(\w+)\s*\[\[function_constant\((\d+)\)\]\]\s*;", statement)
        if found:
            if indices.setdefault(found[2], found[1]) != found[1]:
                yield start, f"function constant {found[2]} is {indices[found[2]]} and {found[1]}"
            if not re.match(rf"\s*constant\s+{SCALARS}\s", statement):
                yield start, f"{statement.strip()!r}: function constants are scalars"
        elif "=" not in statement:
            yield start, f"{statement.strip()!r}: a constant needs a value"


def kernel_heads(s: Source) -> Iterator[Finding]:
    """5.1.3, 5.2: void, with a thread limit; every argument says where it comes from."""
    macros = dict(re.findall(r"#\s*define\s+(\w+_ARGUMENTS)\b((?:[^\n]*\\\n)*[^\n]*)", s.code))
    for m, _, _ in kernels(s):
        if m[1] != "void":
            yield m.start(), f"kernel {m[2]} returns {m[1]}, not void"
        if not re.search(
            r"\[\[max_total_threads_per_threadgroup\(\d+\)\]\]\s*$", s.code[: m.start()]
        ):
            yield m.start(), f"kernel {m[2]} has no thread limit"
        text = s.code[m.end() : closing(s.code, m.end() - 1)]
        for name, body in macros.items():
            text = text.replace(name, body.replace("\\\n", "\n"))
        slots, grids, lanes = [], set(), set()
        for argument in split(text):
            at = re.search(r"\[\[(\w+)(?:\((\d+)\))?\]\]", argument)
            if at is None:
                yield m.start(), f"kernel {m[2]}: {argument.strip()!r} has no attribute"
                continue
            pointer = re.search(r"[*&]", argument[: at.start()])
            if (at[1] == "buffer") != bool(pointer):
                yield m.start(), f"kernel {m[2]}: {argument.strip()!r} is no buffer, or no pointer"
            if at[1].endswith("_in_grid") or at[1].endswith("_per_grid"):
                grids.add(argument.split()[0])
            if "simdgroup" in at[1]:
                lanes.add(argument.split()[0])
            if at[1] == "buffer":
                slots.append(int(at[2]))
            elif not re.match(rf"\s*(?:uint|ushort)[23]?\s+\w+\s*\[\[{at[1]}", argument):
                yield m.start(), f"kernel {m[2]}: {argument.strip()!r} is no uint or ushort"
        if len(grids) > 1:
            yield m.start(), f"kernel {m[2]}: positions of one kernel have one type, found {grids}"
        if len(lanes) > 1:  # 5.2.3.6
            yield m.start(), f"kernel {m[2]}: indices of and in simdgroups are of {sorted(lanes)}"
        if slots != list(range(len(slots))) or len(slots) > 31:
            yield m.start(), f"kernel {m[2]}: expected the slots 0, 1, ... up to 30, found {slots}"


def argument_structs(s: Source) -> Iterator[Finding]:
    """2.5: arguments are packed by Python's struct: members of 4 bytes and no other."""
    for m in re.finditer(r"\bstruct\s+(\w+Args)\s*\{(.*?)\};", s.code, re.DOTALL):
        for member in filter(None, map(str.strip, m[2].split(";"))):
            if not re.match(r"(?:uint|int|float)\s", member):
                yield m.start(), f"{m[1]}: {member!r} is not of 4 bytes"


def recursion(s: Source) -> Iterator[Finding]:
    """1.5.4: recursion is for kernels from Metal 2.4 on, and we have none."""
    macros = set(re.findall(r"#\s*define\s+(\w+)", s.code))
    bodies: dict[str, str] = {}
    starts: dict[str, int] = {}
    for m in re.finditer(r"\b(\w+)\s*\([^;{}]*\)\s*\{", s.code):
        if m[1] not in ("if", "for", "while", "switch") and m[1] not in macros:
            end = closing(s.code, m.end() - 1)
            bodies[m[1]] = bodies.get(m[1], "") + s.code[m.end() : end]
            starts.setdefault(m[1], m.start())
    calls = {
        name: {other for other in bodies if re.search(rf"\b{other}\s*(?:<[^;(){{}}]*>)?\(", body)}
        for name, body in bodies.items()
    }
    for name in bodies:
        reached, todo = set(), list(calls[name])
        while todo:
            other = todo.pop()
            if other not in reached:
                reached.add(other)
                todo += calls[other]
        if name in reached:
            yield starts[name], f"{name!r} calls itself"


def unrolling(s: Source) -> Iterator[Finding]:
    """Pragmas: the ones that Apple's compiler is known to take."""
    for m in re.finditer(r"_Pragma\([^)]*\)|#\s*pragma[^\n]*", s.code):
        if not re.fullmatch(r'_Pragma\(""\)|#\s*pragma (?:once|METAL fp contract\(off\))\s*', m[0]):
            yield m.start(), f"{m[0]!r} is not one of once, METAL fp contract(off) and UNROLL"


RULES: tuple[Rule, ...] = (
    known_names, words_of_cpp, literals, spaces_of_pointers, threadgroup_variables,
    threadgroup_alignment, program_scope, kernel_heads, argument_structs, recursion, unrolling,
)  # fmt: skip


def lint(text: str) -> list[str]:
    """What breaks a rule, as "file:line: message [rule: what it says]"."""
    s, found = source(text), []
    for rule in RULES:
        for position, message in rule(s):
            found.append(f"{s.place(position)}: {message} [{rule.__name__}: {rule.__doc__}]")
    return found


def main() -> int:
    files = [Path(name) for name in sys.argv[1:]] or sorted(SHADERS.glob("*.metal"))
    found = sorted({finding for file in files for finding in lint(splice(file))})
    print("\n".join(found) or f"{len(files)} files keep {len(RULES)} rules")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
