"""Every file of tests/data/bad ends in the error that reasons.tsv tells, and soon."""

import csv
from pathlib import Path

import pytest

from tests.tiny_models import write_model
from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.model import load
from tinyrvllm.soft.cpu.library import compile_library
from tinyrvllm.soft.msl import MSLError

from .data.make_bad import BAD, FILES

ROWS = list(csv.reader((BAD / "reasons.tsv").read_text().splitlines()[1:], delimiter="\t"))


def of(*suffixes: str) -> list[tuple[str, str]]:
    return [(name, words) for name, _, words in ROWS if Path(name).suffix in suffixes]


def test_the_corpus_is_what_its_script_writes() -> None:
    assert {path.name for path in BAD.iterdir()} == {"reasons.tsv", *FILES}
    for name, (data, reason, words) in FILES.items():
        assert (BAD / name).read_bytes() == data
        assert [name, reason, words] in ROWS


@pytest.mark.parametrize(("name", "words"), of(".gguf"))
def test_model_files(name: str, words: str) -> None:
    with pytest.raises(TinyrvllmError) as caught:
        load(BAD / name)
    assert words in str(caught.value) and name in str(caught.value)


@pytest.mark.parametrize(("name", "words"), of(".jinja"))
def test_templates(name: str, words: str, tmp_path: Path) -> None:
    template = (BAD / name).read_text()
    path = write_model(
        tmp_path / "tiny.gguf", "llama", keys={"tokenizer.chat_template": template}
    )
    with pytest.raises(TinyrvllmError) as caught:
        load(path).encode_chat([{"role": "user", "content": "hello"}])
    assert words in str(caught.value)


@pytest.mark.parametrize(("name", "words"), of(".metal"))
def test_shaders(name: str, words: str) -> None:
    with pytest.raises(MSLError) as caught:
        compile_library((BAD / name).read_text(), filename=name)
    assert words in str(caught.value)
