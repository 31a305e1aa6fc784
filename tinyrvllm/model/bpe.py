"""Byte-level BPE (GPT-2 and most models since): bytes, written as printable characters, merged.

Text is cut into words by the model's own regular expressions, each byte of a word becomes one
printable character, and pairs are merged in the order of the file's list. The `tokenizers` library
does all of this; here is what it has to be told so that the ids are llama.cpp's.
"""

import re
import warnings
from typing import Final

from tokenizers import Regex, models, pre_tokenizers

from tinyrvllm.model.gguf_file import GGUFFile, StringArray

# The expressions are those of llama.cpp's src/llama-vocab.cpp, which spells out the upper and lower
# case of English contractions: (?i) would also match the long s. Letters and digits that came with
# Unicode 16 (4,300 code points) are known to `tokenizers` and not yet to llama.cpp.
_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_AROUND_DIGITS = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = _AROUND_DIGITS % r"\p{N}{1,3}"
_QWEN2 = _AROUND_DIGITS % r"\p{N}"
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")

# `tokenizer.ggml.pre` -> expressions, each splitting what the one before it left.
WORD_SPLITS: Final[dict[str, tuple[str, ...]]] = {
    "default": _DEFAULT,
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "llama-bpe": (_LLAMA3,),
    "llama3": (_LLAMA3,),
    "llama-v3": (_LLAMA3,),
    "falcon3": (_LLAMA3,),
    "lfm2": (_LLAMA3,),
    "qwen2": (_QWEN2,),
    "deepseek-r1-qwen": (_QWEN2,),
}
# These keep a word that is a token whole without asking the merges, and begin a text with BOS.
_LLAMA3_FAMILY: Final = frozenset(
    name for name, (first, *_) in WORD_SPLITS.items() if first is _LLAMA3
)

# GPT-2's alphabet: a printable Latin-1 byte is itself, the others follow from U+0100 on.
_PRINTABLE: Final = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN: Final = [byte for byte in range(256) if byte not in _PRINTABLE]
CHARACTER_OF: Final = {byte: byte for byte in _PRINTABLE} | {
    byte: 0x100 + index for index, byte in enumerate(_HIDDEN)
}
_BYTES_OF: Final = {chr(character): bytes([byte]) for byte, character in CHARACTER_OF.items()}

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_UNASSIGNED: Final = "\uffff"  # like a surrogate neither a letter nor a digit nor a space
_LENIENT_UTF8: Final = re.compile(
    rb"[\x00-\x7f]|[\xc0-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf7][\x80-\xbf]{3}|.",
    re.DOTALL,
)


class ByteLevelBPE:
    """The vocabulary and merges of a `gpt2` GGUF file.

    `adds_bos` is what the pre-tokenizer does where the file does not say. Raises GGUFError for a
    pre-tokenizer that is not in `WORD_SPLITS` and for merges of tokens that do not exist.
    """

    def __init__(self, file: GGUFFile, ids: dict[str, int]) -> None:
        pre = file.get("tokenizer.ggml.pre", str, "default")
        if pre not in WORD_SPLITS:
            raise file.error(
                f"the key 'tokenizer.ggml.pre' names the unknown pre-tokenizer {pre!r}; "
                f"supported are {', '.join(WORD_SPLITS)}"
            )
        if pre == "default":
            warnings.warn(
                f"{file.path.name} does not name its pre-tokenizer: text is split by llama.cpp's "
                "default, which may not be how the model was trained; convert the model again",
                stacklevel=2,
            )
        self.adds_bos = pre in _LLAMA3_FAMILY
        splits = [pre_tokenizers.Split(Regex(split), "isolated") for split in WORD_SPLITS[pre]]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._words = pre_tokenizers.Sequence([*splits, to_bytes])
        merges = [m.partition(" ")[::2] for m in file.get("tokenizer.ggml.merges", StringArray)]
        try:
            self._bpe = models.BPE(ids, merges, ignore_merges=pre in _LLAMA3_FAMILY)
        except Exception as error:  # noqa: BLE001 - the library raises nothing more special
            raise file.error(
                "the key 'tokenizer.ggml.merges' must pair tokens of 'tokenizer.ggml.tokens': "
                f"{error}"
            ) from None
        # Bytes without a token (SmolLM2 has some) are left out, but part what is around them.
        absent = [chr(c) for c in CHARACTER_OF.values() if chr(c) not in ids]
        self._absent = re.compile(f"[{re.escape(''.join(absent))}]") if absent else None

    def encode(self, text: str) -> list[int]:
        """Token ids of a text without special tokens; lone surrogates are undecodable bytes."""
        if not _SURROGATE.search(text):
            words = [word for word, _ in self._words.pre_tokenize_str(text)]
        else:
            text = decode_leniently(text.encode("utf-8", "surrogateescape"))
            spans = self._words.pre_tokenize_str(_SURROGATE.sub(_UNASSIGNED, text))
            words = [_as_characters(text[start:end]) for _, (start, end) in spans]
        if self._absent:
            words = [piece for word in words for piece in self._absent.split(word)]
        return [token.id for word in words for token in self._bpe.tokenize(word)]

    @staticmethod
    def token_bytes(text: str) -> bytes:
        """The bytes that a token of the vocabulary stands for."""
        return b"".join(_BYTES_OF.get(character) or character.encode() for character in text)


def decode_leniently(data: bytes) -> str:
    """UTF-8 as llama.cpp reads it: surrogates and overlong forms count, each bad byte is U+FFFD."""
    return "".join(map(_code_point, _LENIENT_UTF8.findall(data)))


def _code_point(sequence: bytes) -> str:
    if len(sequence) == 1:
        return chr(sequence[0]) if sequence[0] < 0x80 else "\ufffd"
    value = sequence[0] & (0x7F >> len(sequence))
    for byte in sequence[1:]:
        value = value << 6 | byte & 0x3F
    return chr(value) if value < 0x110000 else "\ufffd"


def _as_characters(word: str) -> str:
    return word.encode("utf-8", "surrogatepass").decode("latin-1").translate(CHARACTER_OF)
