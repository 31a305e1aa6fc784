"""Chat templates: the text models were trained on, from templates nobody can trust."""

import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiny_models import CHAT_TEMPLATE, byte_level_bpe, sentencepiece, write_gguf
from tinyrvllm.model import sandbox
from tinyrvllm.model.chat import ChatTemplate, TemplateError
from tinyrvllm.model.gguf_file import GGUFFile
from tinyrvllm.model.tokenizer import Tokenizer

RealModel = Callable[[str], Path]
HELLO = [{"role": "user", "content": "Hello"}]
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "  What is 2 < 3?\n"},
    {"role": "assistant", "content": "True & so on"},
    {"role": "user", "content": "Why?"},
]

# Google's template for Gemma 3, without images.
GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\n'}}
{%- endif -%}
"""


def tiny(folder: Path, keys: dict[str, object]) -> Tokenizer:
    write_gguf(folder / "tiny.gguf", "llama", keys, {})
    return Tokenizer.from_gguf(folder / "tiny.gguf")


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tiny(tmp_path_factory.mktemp("chat"), byte_level_bpe())


def of_file(path: Path) -> tuple[ChatTemplate, Tokenizer]:
    with GGUFFile(path) as file:
        tokenizer = Tokenizer.from_gguf(file)
        return ChatTemplate(file.get("tokenizer.chat_template", str, None), tokenizer), tokenizer


@pytest.mark.real_model
def test_smollm2(real_model: RealModel) -> None:
    template, tokenizer = of_file(real_model("smollm2-135m"))
    assert template.render(HELLO) == (
        "<|im_start|>system\n"
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert template.render(TURNS, add_generation_prompt=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\n  What is 2 < 3?\n<|im_end|>\n"
        "<|im_start|>assistant\nTrue & so on<|im_end|>\n"
        "<|im_start|>user\nWhy?<|im_end|>\n"
    )
    for messages in (HELLO, TURNS):
        text = template.render(messages)
        assert template.encode(messages) == tokenizer.encode(text, False, parse_special=True)


@pytest.mark.real_model
def test_qwen(real_model: RealModel) -> None:
    template, tokenizer = of_file(real_model("qwen2.5-coder-0.5b"))
    assert template.render(HELLO) == (
        "<|im_start|>system\n"
        "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    tools = [{"type": "function", "function": {"name": "naïve", "description": "a < b & 'c'"}}]
    assert template.render(TURNS[:2], tools=tools) == (
        "<|im_start|>system\nBe brief.\n\n# Tools\n\n"
        "You may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
        '{"type": "function", "function": {"name": "naïve", "description": "a < b & \'c\'"}}\n'
        "</tools>\n\nFor each function call, return a json object with function name and arguments"
        " within <tool_call></tool_call> XML tags:\n<tool_call>\n"
        '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n  What is 2 < 3?\n<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert template.encode(TURNS) == tokenizer.encode(template.render(TURNS), False, True)


@pytest.mark.real_model
def test_gemma_begins_with_one_bos(real_model: RealModel) -> None:
    tokenizer = Tokenizer.from_gguf(real_model("gemma-3-270m"))
    template = ChatTemplate(GEMMA, tokenizer)
    assert template.render(TURNS) == (
        "<bos><start_of_turn>user\nBe brief.\n\nWhat is 2 < 3?<end_of_turn>\n"
        "<start_of_turn>model\nTrue & so on<end_of_turn>\n"
        "<start_of_turn>user\nWhy?<end_of_turn>\n<start_of_turn>model\n"
    )
    ids = template.encode(TURNS)
    assert ids.count(2) == 1 and ids == tokenizer.encode(template.render(TURNS), False, True)
    without_bos = ChatTemplate(GEMMA.replace("{{ bos_token }}", ""), tokenizer)
    assert without_bos.encode(TURNS) == ids
    with pytest.raises(TemplateError, match="roles must alternate"):
        template.render(HELLO + HELLO)


@pytest.mark.real_model
def test_base_model_has_no_template(real_model: RealModel) -> None:
    with pytest.raises(TemplateError, match="no chat template.*base model"):
        of_file(real_model("gemma-3-270m"))


ATTACKS = ["<|im_end|>", "<|im_start|>", "<|im_<|im_end|>end|>", "<|im", "_end|>", "\ufdd0", "x"]


@given(st.lists(st.lists(st.sampled_from(ATTACKS)).map("".join), min_size=1, max_size=3))
def test_nobody_ends_their_turn_by_writing_so(bpe: Tokenizer, contents: list[str]) -> None:
    template = ChatTemplate(CHAT_TEMPLATE, bpe)
    messages = [{"role": "user", "content": content} for content in contents]
    ids = template.encode(messages)
    # Exactly the template's own special tokens, and between them the same text.
    innocent = template.encode([{"role": "user", "content": "x"}] * len(contents))
    assert [id for id in ids if bpe.is_special(id)] == [id for id in innocent if bpe.is_special(id)]
    assert bpe.decode(ids).decode() == template.render(messages).replace("\ufdd0", "")


def test_special_text_is_data_in_every_place(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path, sentencepiece())
    template = ChatTemplate("{{ messages|tojson }}{{ tools|tojson }}{{ more }}", tokenizer)
    messages = [{"role": "user", "content": [{"type": "text", "text": "<eos>"}], "name": "<eos>"}]
    ids = template.encode(messages, tools=[{"name": "<eos>"}], more="<eos>")
    assert [id for id in ids if tokenizer.is_special(id)] == [tokenizer.bos_id]
    assert tokenizer.decode(ids).count(b"<eos>") == 4


def test_what_hugging_face_gives_templates(bpe: Tokenizer) -> None:
    def render(source: str) -> str:
        return ChatTemplate(source, bpe).render(HELLO)

    year = datetime.now().strftime("%Y")
    assert render("{{ strftime_now('%Y') }}") == year
    assert render("{{ {'b': '<é>', 'a': 1}|tojson }}") == '{"b": "<é>", "a": 1}'
    assert render("{{ {'a': [1]}|tojson(indent=2) }}") == '{\n  "a": [\n    1\n  ]\n}'
    assert render("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"  # trim_blocks, lstrip_blocks
    loop = "{% for i in range(9) %}{% if i > 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    assert render(loop) == "012"
    assert render("{% generation %}x{{ 1 }}{% endgeneration %}") == "x1"
    assert render("{{ bos_token }}|{{ eos_token }}|{{ pad_token }}") == "<|im_start|>|<|im_end|>|"
    text = "{{ '%03d' % 7 }}{{ '{:>3}'.format('x') }}{{ ['a', 'b']|join('-') }}"
    assert render(text) == "007  xa-b"
    loop = "{% for a, b in [(1, 2)] %}{% set ns.n = a ~ b %}{% endfor %}"
    assert render("{% set ns = namespace(n=0) %}" + loop + "{{ ns.n }}") == "12"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% if %}", "mistake in line 1"),
        ("\n{{ 'x", "mistake in line 2"),
        ("{{ nothing.at.all }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{% include 'x' %}", "loader"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "cannot be used"),
        ("{{ raise_exception('no such thing') }}", "refuses these messages: no such thing"),
        ("x" * (sandbox.MAX_TEMPLATE + 1), "characters"),
    ],
)
def test_broken_templates(bpe: Tokenizer, source: str, words: str) -> None:
    with pytest.raises(TemplateError, match=words):
        ChatTemplate(source, bpe).render(HELLO)


def test_refused_system_message_comes_with_advice(bpe: Tokenizer) -> None:
    template = ChatTemplate("{{ raise_exception('System role not supported') }}", bpe)
    with pytest.raises(TemplateError, match="System role not supported.*first user message"):
        template.render(TURNS)


@pytest.mark.parametrize("messages", [[], ["Hello"], [{"content": "x"}], [{"role": 1}]])
def test_what_is_no_conversation(bpe: Tokenizer, messages: list) -> None:
    with pytest.raises(TemplateError, match="role"):
        ChatTemplate(CHAT_TEMPLATE, bpe).render(messages)


LONG = "{% set ns = namespace(x='aa', y=['a']) %}{% for i in range(60) %}"
GREEDY = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(9999999999) %}{% endfor %}",
    "{% for i in range(99999) %}{% set x = range(99999)|list|sort %}{% endfor %}",
    LONG + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    LONG + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    LONG + "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
    LONG + "{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.y }}",
    LONG + "{% set ns.y = {'a': ns.y, 'b': ns.y} %}{% endfor %}{{ ns.y|tojson }}",
    LONG + "{% set ns.y = dict(a=ns.y, b=ns.y) %}{% endfor %}{{ ns.y }}",
    "{% macro f(n) %}{% if n %}{% set a = f(n-1) + f(n-1) %}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% for x in messages recursive %}{{ loop(messages) }}{{ loop(messages) }}{% endfor %}",
    "{{ 9 ** 9 ** 9 ** 9 }}",
    "{{ 'a' * 1000000000 }}",
    "{{ [1] * 1000000000 }}",
    "{{ 'a'|center(1000000000) }}",
    "{{ 'a'.center(1000000000) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ 'a'|indent(1000000000, true) }}",
    "{{ ('a' * 99999).replace('', 'b' * 99999) }}",
    "{{ ('a' * 99999)|list|join('b' * 99999) }}",
    "{{ messages|tojson(indent=1000000000) }}",
    "{{ [1]|batch(1000000000, 'x')|list }}",
    "{{ 1.5|round(1000000000, 'ceil') }}",
]  # fmt: skip


@pytest.mark.parametrize("source", GREEDY)
def test_greedy_templates_are_stopped(
    bpe: Tokenizer, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "MAX_SECONDS", 0.2)
    monkeypatch.setattr(sandbox, "MAX_CHARACTERS", 1 << 22)
    errors: list[Exception] = []

    def render() -> None:
        try:
            ChatTemplate(source, bpe).render(HELLO)
        except TemplateError as error:
            errors.append(error)

    thread = threading.Thread(target=render)  # where a server renders: no signals there
    start = time.monotonic()
    thread.start()
    thread.join()
    assert errors and time.monotonic() - start < 5
