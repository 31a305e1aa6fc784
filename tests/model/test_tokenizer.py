"""Tokenizers against llama.cpp's ids, and against files that lie."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiny_models import byte_level_bpe, sentencepiece, write_gguf
from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.model.bpe import WORD_SPLITS
from tinyrvllm.model.gguf_file import GGUFError, GGUFFile
from tinyrvllm.model.tokenizer import Tokenizer

REFERENCE = Path(__file__).parent.parent / "reference"
MODELS = {
    "smollm2-135m": "smollm2-135m-q4_1",
    "gemma-3-270m": "gemma3-270m-q4_k_m",
    "qwen2.5-coder-0.5b": "qwen2.5-coder-0.5b-q4_k_m",
}
RealModel = Callable[[str], Path]
pytestmark = pytest.mark.filterwarnings("ignore:.*does not name its pre-tokenizer")


def tiny(folder: Path, keys: dict[str, object], **changes: object) -> Tokenizer:
    """The tokenizer of a file with these keys, some of them changed (None: left out)."""
    changed = {f"tokenizer.ggml.{name}": value for name, value in changes.items()}
    write_gguf(folder / "tiny.gguf", "llama", keys | changed, {})
    return Tokenizer.from_gguf(folder / "tiny.gguf")


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tiny(tmp_path_factory.mktemp("bpe"), byte_level_bpe())


@pytest.fixture(scope="module")
def spm(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tiny(tmp_path_factory.mktemp("spm"), sentencepiece())


@pytest.mark.real_model
@pytest.mark.parametrize("model", MODELS)
def test_ids_and_text_are_llama_cpps(model: str, real_model: RealModel) -> None:
    tokenizer = Tokenizer.from_gguf(real_model(model))
    reference = json.loads((REFERENCE / f"{MODELS[model]}.llamacpp.json").read_text())
    assert tokenizer.vocab_size == reference["n_vocab"]
    assert tokenizer.eos_ids == set(reference["eog_tokens"])
    assert bool(tokenizer.begin) == reference["add_bos"]
    for string in reference["tokenize"]:
        data = bytes.fromhex(string["hex"])
        for flags, expected in string["ids"].items():
            add_special, parse_special = (flag.endswith("1") for flag in flags.split(","))
            ids = tokenizer.encode(data, add_special, parse_special)
            assert ids == expected, (string["name"], flags)
            if flags in string["detok_hex"]:
                assert tokenizer.decode(ids).hex() == string["detok_hex"][flags]
                pieces = b"".join(map(tokenizer.token_bytes, ids))
                assert pieces.hex() == string["pieces_hex"][flags]
    for prompt in reference["prompts"]:
        assert tokenizer.encode(prompt["text"]) == prompt["ids"]
    long_text = json.loads((REFERENCE / "inputs.json").read_text())["long_text"]
    expected = reference["long"]["ids"]
    assert tokenizer.encode(long_text)[: len(expected)] == expected


def override_cases() -> list[dict]:
    return json.loads((REFERENCE / "overrides.llamacpp.json").read_text())["cases"]


@pytest.mark.real_model
@pytest.mark.parametrize("case", override_cases(), ids=lambda case: str(case["overrides"]))
def test_pre_tokenizers_and_flags_are_llama_cpps(case: dict, real_model: RealModel) -> None:
    file = GGUFFile(real_model(case["model"]))
    file.metadata = {**file.metadata, **case["overrides"]}
    tokenizer = Tokenizer.from_gguf(file)
    texts = json.loads((REFERENCE / "overrides.llamacpp.json").read_text())["texts_hex"]
    for text, expected in zip(texts, case["ids"], strict=True):
        data = bytes.fromhex(text)
        assert tokenizer.encode(data, case["add_special"], case["parse_special"]) == expected, data


@given(st.text())
def test_byte_level_round_trip(bpe: Tokenizer, text: str) -> None:
    ids = bpe.encode(text)
    assert bpe.decode(ids).decode() == text
    assert all(0 <= id < bpe.vocab_size and not bpe.is_special(id) for id in ids)


@given(st.binary())
def test_sentencepiece_keeps_every_byte(spm: Tokenizer, data: bytes) -> None:
    ids = spm.encode(data, add_special=False)
    # SentencePiece spells a space ▁, so a literal one comes back as a space; and a space after a
    # broken character comes back as ▁, because llama.cpp's symbol then ends amid its three bytes.
    space = "▁".encode()
    assert spm.decode(ids).replace(space, b" ") == data.replace(space, b" ")
    assert all(0 <= id < spm.vocab_size for id in ids)


@given(st.lists(st.sampled_from(["<|im_end|>", "<|im_", "end|>", " ", "</s>", "<bos>", "a\n"])))
def test_special_text_is_data_unless_asked_for(
    bpe: Tokenizer, spm: Tokenizer, pieces: list[str]
) -> None:
    text = "".join(pieces)
    for tokenizer in (bpe, spm):
        ids = tokenizer.encode(text, add_special=False)
        assert not any(map(tokenizer.is_special, ids))
        assert tokenizer.decode(ids).decode() == text
        asked = tokenizer.encode(text, add_special=False, parse_special=True)
        assert tokenizer.decode(asked).decode() == text
        assert sum(map(tokenizer.is_special, asked)) == sum(
            text.count(special) for special in tokenizer.special_texts
        )


def test_what_the_command_line_may_give(bpe: Tokenizer, spm: Tokenizer) -> None:
    escaped = b"caf\xc3\xa9 \xff".decode("utf-8", "surrogateescape")
    assert bpe.encode(escaped) == bpe.encode(b"caf\xc3\xa9 \xff") == bpe.encode("café \ufffd")
    assert spm.decode(spm.encode(escaped, add_special=False)) == b"caf\xc3\xa9 \xff"
    assert spm.encode("\udcc3\udca9") == spm.encode("é")  # a character, escaped byte by byte
    for tokenizer in (bpe, spm):  # half of a surrogate pair, from JSON
        assert tokenizer.encode("\ud83d x") == tokenizer.encode("\ufffd x")


def test_space_prefix(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path, sentencepiece(), add_space_prefix=True)
    ids = tokenizer.encode("Hello", add_special=False)
    assert tokenizer.decode(ids) == b"Hello"
    assert b"".join(map(tokenizer.token_bytes, ids)) == b" Hello"  # what streaming shows


class Counted(dict[str, int]):
    """Counts how often it is asked."""

    asked = 0

    def get(self, text: str) -> int | None:  # type: ignore[override]
        self.asked += 1
        return super().get(text)


@pytest.mark.parametrize("count", [1000, 10_000])
@pytest.mark.parametrize("unit", ["in", "here", "thellerona"])
def test_a_long_word_costs_a_few_questions_a_letter(tmp_path: Path, unit: str, count: int) -> None:
    """However long it is: n - 1 first pairs, and for each merge one that is popped and two new."""
    tokens = sentencepiece()["tokenizer.ggml.tokens"] + ["inin", "inininin", "herehere"]
    scores = [0.0] * 262 + [-float(rank) for rank in range(len(tokens) - 262)]
    kinds = sentencepiece()["tokenizer.ggml.token_type"] + [1, 1, 1]
    tokenizer = tiny(tmp_path, sentencepiece(), tokens=tokens, scores=scores, token_type=kinds)
    tokenizer._model._ids = ids = Counted(tokenizer._model._ids)
    text = (unit * count)[:count]
    assert tokenizer.decode(tokenizer.encode(text, add_special=False)).decode() == text
    assert ids.asked <= 6 * count


def test_phi3_tokens_swallow_the_space_after_them(tmp_path: Path) -> None:
    keys = byte_level_bpe() | {"general.name": "Phi-3 mini"}
    tokenizer = tiny(tmp_path, keys)
    ids = tokenizer.encode("<|im_start|> \n user", parse_special=True)
    assert tokenizer.decode(ids) == b"<|im_start|>user"


def test_bos_defaults(tmp_path: Path) -> None:
    assert tiny(tmp_path, byte_level_bpe(), pre="llama-bpe", add_bos_token=None).begin == [1]
    assert tiny(tmp_path, byte_level_bpe(), add_bos_token=None).begin == []
    spm = tiny(tmp_path, sentencepiece(), add_bos_token=None, bos_token_id=None)
    assert spm.begin == [1] and spm.end == []
    both = tiny(tmp_path, byte_level_bpe(), add_bos_token=True, add_eos_token=True)
    assert both.encode("") == [both.bos_id, both.eos_id]


def test_default_pre_tokenizer_warns(tmp_path: Path) -> None:
    for pre in ("default", None):
        with pytest.warns(UserWarning, match="does not name its pre-tokenizer"):
            tiny(tmp_path, byte_level_bpe(), pre=pre)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny(tmp_path, byte_level_bpe(), pre="qwen2")


def test_unknown_pre_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(GGUFError) as caught:
        tiny(tmp_path, byte_level_bpe(), pre="kimi-k2")
    assert all(f in str(caught.value) for f in ("tokenizer.ggml.pre", "kimi-k2", *WORD_SPLITS))


TOKENS = byte_level_bpe()["tokenizer.ggml.tokens"]


@pytest.mark.parametrize(
    ("keys", "name", "value"),
    [
        (byte_level_bpe, "model", None),
        (byte_level_bpe, "model", 7),
        (byte_level_bpe, "model", "bert"),
        (byte_level_bpe, "pre", 1),
        (byte_level_bpe, "tokens", None),
        (byte_level_bpe, "tokens", "abc"),
        (byte_level_bpe, "tokens", [1, 2, 3]),
        (byte_level_bpe, "tokens", [*TOKENS[:-1], TOKENS[0]]),
        (byte_level_bpe, "token_type", "normal"),
        (byte_level_bpe, "token_type", [1, 1]),
        (byte_level_bpe, "token_type", [1.0] * len(TOKENS)),
        (byte_level_bpe, "token_type", [6] * len(TOKENS)),
        (byte_level_bpe, "merges", None),
        (byte_level_bpe, "merges", ["a\u4e00 b"]),
        (byte_level_bpe, "merges", ["ab"]),
        (byte_level_bpe, "merges", ["a  b"]),
        (byte_level_bpe, "merges", [3]),
        (byte_level_bpe, "bos_token_id", len(TOKENS)),
        (byte_level_bpe, "eos_token_id", "2"),
        (byte_level_bpe, "eot_token_id", 1 << 31),
        (byte_level_bpe, "fim_pad_token_id", 1 << 20),
        (byte_level_bpe, "add_bos_token", 1),
        (sentencepiece, "scores", None),
        (sentencepiece, "scores", [0.5]),
        (sentencepiece, "scores", ["1.0"]),
        (sentencepiece, "scores", "1.0"),
        (sentencepiece, "unknown_token_id", 1 << 20),
        (sentencepiece, "add_space_prefix", "yes"),
    ],
)
def test_damaged_metadata_names_the_key(
    keys: Callable[[], dict[str, object]], name: str, value: object, tmp_path: Path
) -> None:
    with pytest.raises(GGUFError, match=f"tokenizer.ggml.{name}"):
        tiny(tmp_path, keys(), **{name: value})


def test_scores_must_be_numbers(tmp_path: Path) -> None:
    scores = [float("nan"), *sentencepiece()["tokenizer.ggml.scores"][1:]]
    with pytest.raises(GGUFError, match="scores"):
        tiny(tmp_path, sentencepiece(), scores=scores)


@given(st.data())
def test_any_metadata_is_a_tokenizer_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    word = st.text("ab<>0xA1 ▁Ġ", max_size=6)
    size = data.draw(st.integers(1, 8))
    keys = data.draw(st.sampled_from([byte_level_bpe, sentencepiece]))()
    drawn = {
        "tokens": st.lists(word, min_size=size, max_size=size + 1, unique=True),
        "token_type": st.lists(st.integers(-1, 7), min_size=size, max_size=size),
        "scores": st.lists(st.floats(width=32), min_size=size, max_size=size),
        "merges": st.lists(st.tuples(word, word).map(" ".join), max_size=3),
        "bos_token_id": st.none() | st.integers(0, size),
        "eos_token_id": st.none() | st.integers(0, size),
        "unknown_token_id": st.none() | st.integers(0, size),
        "padding_token_id": st.none(),
    }
    changes = {name: data.draw(values) or None for name, values in drawn.items()}
    try:
        tokenizer = tiny(tmp_path_factory.mktemp("any"), keys, **changes)
    except GGUFError as error:
        assert "tokenizer.ggml." in str(error)
        return
    ids = tokenizer.encode(data.draw(st.text("ab<>0xA1 ▁é")), parse_special=True)
    assert all(0 <= id < tokenizer.vocab_size for id in ids)
    tokenizer.decode(range(tokenizer.vocab_size))


def test_bos_without_an_id(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match="bos_token_id"):
        tiny(tmp_path, byte_level_bpe(), add_bos_token=True, bos_token_id=None)


def test_empty_tokens_have_names(tmp_path: Path) -> None:
    tokens = [*byte_level_bpe()["tokenizer.ggml.tokens"], "", ""]
    types = [*byte_level_bpe()["tokenizer.ggml.token_type"], 5, 5]
    tokenizer = tiny(tmp_path, byte_level_bpe(), tokens=tokens, token_type=types)
    assert tokenizer.decode([len(tokens) - 1]) == b""


@pytest.mark.parametrize("id", [-1, 10**9])
def test_ids_outside_the_vocabulary(bpe: Tokenizer, id: int) -> None:
    for method in (bpe.token_bytes, bpe.is_special, bpe.text):
        with pytest.raises(TinyrvllmError, match=str(id)):
            method(id)
