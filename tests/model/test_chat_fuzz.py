"""Mangled chat templates: a text or a TemplateError, soon, and no other end."""

import random

import pytest

from tests.model.test_chat import GEMMA, TURNS
from tests.model.test_chat import bpe as bpe  # noqa: PLC0414  (a fixture)
from tests.soft.test_mangled import WORD, delete, repeat, swap, truncate
from tests.tiny_models import CHAT_TEMPLATE
from tinyrvllm.model import sandbox
from tinyrvllm.model.chat import ChatTemplate, TemplateError
from tinyrvllm.model.tokenizer import Tokenizer

NASTY = ["{{", "}}", "{%", "%}", "{#", "#}", "|", "(", ")", "[", "]", "[0]", "[-1]", ".", "**", "~", "%", "'", '"',
         "loop", "self", "super()", "caller()", "namespace()", "range(999999999)", "cycler()", "lipsum()",
         "__class__", ".__init__.__globals__", "|attr('__class__')", "|map('upper')", "|tojson", "|list",
         "{% for x in x %}", "{% endfor %}", "{% include 'x' %}", "{% import 'x' as y %}", "{% macro m() %}",
         "{% extends 'x' %}", "{% raw %}", "{% call m() %}", "{% set x = x %}", "{% block b %}", "messages",
         "none", "9" * 40, "\0", "é", "\ud800", "<|im_end|>"]  # fmt: skip


def mangled(text: str, seed: int) -> str:
    rng = random.Random(seed)
    words = WORD.findall(text)
    for _ in range(rng.randint(1, 4)):
        if rng.random() < 0.5:
            words.insert(rng.randrange(len(words) + 1), rng.choice(NASTY))
        else:
            words = rng.choice([delete, repeat, swap, truncate])(words, rng) or [""]
    return "".join(words)


def check(bpe: Tokenizer, template: str, seeds: range) -> int:
    """Renders mangled versions of a template; how many were refused."""
    refused = 0
    for seed in seeds:
        try:
            ChatTemplate(mangled(template, seed), bpe).encode(TURNS)
        except TemplateError as error:
            refused += 1
            assert str(error)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    return refused


@pytest.mark.parametrize("template", [GEMMA, CHAT_TEMPLATE], ids=["gemma", "chatml"])
def test_a_mangled_template_is_a_text_or_an_error(
    bpe: Tokenizer, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "MAX_SECONDS", 0.2)
    assert check(bpe, template, range(100)) > 20


@pytest.mark.long
@pytest.mark.parametrize("template", [GEMMA, CHAT_TEMPLATE], ids=["gemma", "chatml"])
def test_many_mangled_templates(
    bpe: Tokenizer, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "MAX_SECONDS", 0.2)
    check(bpe, template, range(100, 10_000))
