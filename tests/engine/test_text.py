"""Streaming gives the same text as everything at once, however the text comes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiny_models import byte_level_bpe, sentencepiece, write_gguf
from tinyrvllm.engine.text import StopStrings, StreamDecoder
from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.model.tokenizer import Tokenizer


@pytest.fixture(scope="module", params=[byte_level_bpe, sentencepiece])
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    path = tmp_path_factory.mktemp("text") / "tiny.gguf"
    write_gguf(path, "llama", request.param(), {})
    return Tokenizer.from_gguf(path)


def stream(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    decoder = StreamDecoder(tokenizer)
    return [*map(decoder.add, ids), decoder.finish()]


@given(st.data())
def test_streaming_is_decoding(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1)))
    shown = [id for id in ids if not tokenizer.is_special(id)]
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(shown).decode(errors="replace")


@given(st.text())
def test_only_whole_characters(tokenizer: Tokenizer, text: str) -> None:
    text = text.replace("▁", "").replace("\ufffd", "")
    pieces = stream(tokenizer, tokenizer.encode(text))
    assert "".join(pieces) == text
    assert pieces[-1] == ""


def test_a_character_comes_with_its_last_byte(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("😀", add_special=False)
    assert len(ids) == 4
    assert stream(tokenizer, ids) == ["", "", "", "😀", ""]
    assert stream(tokenizer, ids[:3]) == ["", "", "", "\ufffd"]


def feed(stops: StopStrings, chunks: list[str]) -> list[str]:
    return [*map(stops.add, chunks), stops.finish()]


def first_stop(text: str, stops: list[str]) -> str:
    """The definition: read one character at a time; end when what was read ends with a stop."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))]
    return text


@given(
    st.lists(st.text("ab.", max_size=6), max_size=8),
    st.lists(st.text("ab.", min_size=1, max_size=5), max_size=3),
)
def test_stop_strings_in_any_chunks(chunks: list[str], stops: list[str]) -> None:
    text = "".join(chunks)
    expected = first_stop(text, stops)
    watcher = StopStrings(stops)
    assert "".join(feed(watcher, chunks)) == expected
    assert watcher.stopped == any(stop in text for stop in stops)
    if watcher.stopped:
        assert watcher.add("more") == watcher.finish() == ""


@given(
    st.lists(st.text("ab.", max_size=6), max_size=8),
    st.lists(st.text("ab.", min_size=1, max_size=5), max_size=3),
)
def test_no_more_than_needed_is_held_back(chunks: list[str], stops: list[str]) -> None:
    watcher, shown, read = StopStrings(stops), "", ""
    for chunk in chunks:
        shown += watcher.add(chunk)
        read += chunk
        if watcher.stopped:
            break
        held = read.removeprefix(shown)
        prefixes = {stop[:length] for stop in stops for length in range(len(stop))} | {""}
        assert held == max((each for each in prefixes if read.endswith(each)), key=len)


def test_stop_examples() -> None:
    assert feed(StopStrings(["\nUser:"]), ["Hi", "\n", "Us", "e", "r", ":", " x"]) == [
        "Hi", "", "", "", "", "", "", ""
    ]  # fmt: skip
    assert feed(StopStrings(["\nUser:"]), ["a\nU", "nit", "\nUse"]) == ["a", "\nUnit", "", "\nUse"]
    assert feed(StopStrings([]), ["a", "b"]) == ["a", "b", ""]
    with pytest.raises(TinyrvllmError, match="empty"):
        StopStrings(["x", ""])
