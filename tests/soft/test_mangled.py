"""Mangled Metal source: the front end ends in a result or in an MSLError, never in anything else.

What it lets through goes to clang, which knows how to refuse; so the whole compiler is tried on a
few dozen, and the front end, which is ours, on thousands.
"""

import random
import re
from collections.abc import Callable

import pytest

from tinyrvllm.mtl.library import SHADERS, splice
from tinyrvllm.soft.cpu import compiler
from tinyrvllm.soft.cpu.library import compile_library
from tinyrvllm.soft.msl import MSLError
from tinyrvllm.soft.msl.preprocess import preprocess
from tinyrvllm.soft.msl.translate import translate

STEMS = ("elementwise", "reduce", "matvec", "attention_decode", "gemm")
WORD = re.compile(r"\w+|\s+|[^\w\s]")
NASTY = ["{", "}", "(", ")", "[[", "]]", "<", ">", ";", ",", "#", '"', "'", "/*", "//", "\\", "\0",
         "template", "kernel", "threadgroup", "constant", "struct", "using", "namespace", "operator",
         "[[buffer(", "[[function_constant(9999999999999999999999)]]", "0x", "1e", "é", "u8R\"(",
         "simd_sum(", "\r", "::", "...", "auto", "if (", "for (", "do", "goto", "asm", "return"]  # fmt: skip


def delete(words: list[str], rng: random.Random) -> list[str]:
    at = rng.randrange(len(words))
    return words[:at] + words[at + rng.randint(1, 5) :]


def repeat(words: list[str], rng: random.Random) -> list[str]:
    at = rng.randrange(len(words))
    return words[:at] + words[at : at + 8] * rng.randint(2, 4) + words[at:]


def swap(words: list[str], rng: random.Random) -> list[str]:
    a, b = (rng.randrange(len(words)) for _ in range(2))
    words[a], words[b] = words[b], words[a]
    return words


def insert(words: list[str], rng: random.Random) -> list[str]:
    at = rng.randrange(len(words))
    return [*words[:at], rng.choice(NASTY), *words[at:]]


def truncate(words: list[str], rng: random.Random) -> list[str]:
    return words[: rng.randrange(len(words))]


CHANGES: list[Callable[[list[str], random.Random], list[str]]] = [
    delete, repeat, swap, insert, insert, truncate,
]  # fmt: skip


def mangled(text: str, seed: int) -> str:
    """One to three changes to the words of a text."""
    rng = random.Random(seed)
    words = WORD.findall(text)
    for _ in range(rng.randint(1, 3)):
        words = rng.choice(CHANGES)(words, rng) or [""]
    return "".join(words)


def check(stem: str, seeds: range) -> int:
    """Translates mangled versions of a shader; how many were refused."""
    text = splice(SHADERS / f"{stem}.metal")
    expanded = preprocess(text, f"{stem}.metal", compiler.find().preprocess)
    refused = 0
    for seed in seeds:
        source = mangled(expanded, seed)
        try:
            translate(source, f"{stem}.metal")
        except MSLError as error:
            refused += 1
            assert "error:" in str(error)
        except Exception as error:
            error.add_note(f"{stem}.metal, seed {seed}")
            raise
    return refused


@pytest.mark.parametrize("stem", STEMS)
def test_the_front_end_answers(stem: str) -> None:
    check(stem, range(40))


@pytest.mark.long
@pytest.mark.parametrize("stem", STEMS)
def test_the_front_end_answers_to_much(stem: str) -> None:
    assert check(stem, range(40, 2_000)) > 20


@pytest.mark.parametrize("seed", range(8))
def test_the_whole_compiler_answers(seed: int) -> None:
    text = mangled(splice(SHADERS / "elementwise.metal"), 1_000 + seed)
    try:
        compile_library(text, filename="elementwise.metal")
    except MSLError as error:
        assert "error:" in str(error) or "elementwise.metal" in str(error)


@pytest.mark.parametrize(
    "source",
    ["", "\0", "\0" * 100, "{" * 3000, "(" * 3000, "[[" * 2000, "<" * 3000, "/*", '"', "kernel",
     "kernel void", "kernel void f(", "template <", "#include <nothing>", "struct S { S s; };",
     "\ud800", "kernel void f(device float *a [[buffer(99)]]) {}",
     "constant int n [[function_constant(70000)]];"],
    ids=lambda text: repr(text)[:24],
)  # fmt: skip
def test_what_is_no_program(source: str) -> None:
    try:
        compile_library(source, filename="bad.metal")
    except MSLError as error:
        assert str(error)
