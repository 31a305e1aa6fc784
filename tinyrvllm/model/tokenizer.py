"""Text to token ids and back, from a GGUF file alone, with the ids that llama.cpp gives.

The rules for special tokens, their defaults and the end-of-generation set follow llama.cpp's
src/llama-vocab.cpp (`llama_vocab::impl::load`, `tokenizer_st_partition`), without its exceptions
for model families that are not supported here.
"""

import os
import re
from collections.abc import Iterable
from typing import Final

import numpy as np
from gguf.constants import TokenType

from tinyrvllm.errors import TinyrvllmError
from tinyrvllm.model.bpe import ByteLevelBPE
from tinyrvllm.model.gguf_file import GGUFFile, StringArray
from tinyrvllm.model.sentencepiece import SentencePiece

# Tokens that are known by their text, because few files name them all.
_END_TEXTS: Final = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>",
    "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>",
)  # fmt: skip
_FILL_IN_MIDDLE_TEXTS: Final = {
    "fim_pre": ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<PRE>", "▁<PRE>"),
    "fim_suf": ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<SUF>", "▁<SUF>"),
    "fim_mid": ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<MID>", "▁<MID>"),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
_ENDING_FILL_IN_MIDDLE: Final = ("fim_pad", "fim_rep", "fim_sep")

_SPECIAL: Final = (TokenType.CONTROL, TokenType.UNKNOWN)
_NOT_PLAIN: Final = (*_SPECIAL, TokenType.BYTE)
_BYTE_TOKEN: Final = re.compile("<0x([0-9A-F]{2})>")
_C_WHITESPACE: Final = " \t\n\v\f\r"  # what C's isspace knows
_LONE_SURROGATE: Final = re.compile("[\ud800-\udc7f\udd00-\udfff]")


class Tokenizer:
    """The tokenizer of a GGUF file.

    `bos_id`, `eos_id`, `unk_id`, `pad_id`: ids or None. `eos_ids`: every id that ends a generation.
    `begin`, `end`: what the model wants around a text, [BOS] or [] and [EOS] or []. `vocab_size`:
    ids are 0 <= id < vocab_size.

    Raises GGUFError for a file whose tokenizer is missing, damaged or not supported.
    """

    @classmethod
    def from_gguf(cls, source: str | os.PathLike[str] | GGUFFile) -> "Tokenizer":
        """The tokenizer of a file, given by its path or opened already."""
        if isinstance(source, GGUFFile):
            return cls(source)
        with GGUFFile(source) as file:
            return cls(file)

    def __init__(self, file: GGUFFile) -> None:
        model = file.get("tokenizer.ggml.model", str)
        if model not in ("gpt2", "llama"):
            raise file.error(
                f"the key 'tokenizer.ggml.model' names the tokenizer {model!r}; supported are "
                "'gpt2' (byte-level BPE) and 'llama' (SentencePiece)"
            )
        self._texts = _read_texts(file)
        self.vocab_size = len(self._texts)
        self._kinds = _read_kinds(file, self._texts)
        ids = {text: id for id, text in enumerate(self._texts)}
        if len(ids) < self.vocab_size:
            twice = next(text for id, text in enumerate(self._texts) if ids[text] != id)
            raise file.error(f"the key 'tokenizer.ggml.tokens' holds {twice!r} twice")

        is_sentencepiece = model == "llama"
        self.bos_id = self._read_id(file, "bos", 1 if is_sentencepiece else None)
        self.eos_id = self._read_id(file, "eos", 2 if is_sentencepiece else None)
        self.unk_id = self._read_id(file, "unknown", 0 if is_sentencepiece else None)
        self.pad_id = self._read_id(file, "padding", None)
        self._model = (
            self._sentencepiece(file, ids) if is_sentencepiece else ByteLevelBPE(file, ids)
        )
        self._prefix = ""
        if is_sentencepiece and file.get("tokenizer.ggml.add_space_prefix", bool, True):
            self._prefix = " "
        self.begin = self._added(file, "bos", self.bos_id, self._model.adds_bos)
        self.end = self._added(file, "eos", self.eos_id, False)
        self.eos_ids = self._end_of_generation(file, ids)
        # Longest first, as llama.cpp cuts them out.
        self._parsed_ids = self._of_kinds((*_SPECIAL, TokenType.USER_DEFINED))
        self._parsed_ids.sort(key=lambda id: -len(self._texts[id].encode()))
        self._user_defined_ids = [id for id in self._parsed_ids if not self.is_special(id)]
        # One that is a single character could not be told from a user's in `split_special`.
        self._special_ids = [
            id for id in self._parsed_ids if self.is_special(id) and len(self._texts[id]) > 1
        ]
        self._strip_after = self._stripping_ids(file)

    def encode(
        self, text: str | bytes, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Token ids of a text.

        `add_special`: with BOS and EOS where the model wants them. `parse_special`: the text of a
        control token becomes that token; without, it is data like any other. Bytes, and surrogate
        escapes in a `str` (undecodable command line arguments), need not be valid UTF-8: byte-level
        BPE reads each bad byte as U+FFFD, SentencePiece keeps it as a byte token.
        """
        ids = [*self.begin] if add_special else []
        parsed = self._parsed_ids if parse_special else self._user_defined_ids
        for part in self._split(_as_text(text), parsed):
            ids += [part] if isinstance(part, int) else self._model.encode(self._prefix + part)
        return [*ids, *self.end] if add_special else ids

    def split_special(self, text: str) -> list[str | int]:
        """The text with the texts of control tokens (`special_texts`) replaced by their ids."""
        return self._split(_as_text(text), self._special_ids)

    def decode(self, ids: Iterable[int]) -> bytes:
        """The text that `encode` turned into `ids`, special tokens written out; may be bad UTF-8.

        Raises TinyrvllmError for an id outside the vocabulary.
        """
        data = b"".join(map(self.token_bytes, ids))
        return data.removeprefix(self._prefix.encode())

    def token_bytes(self, id: int) -> bytes:
        """The bytes one token stands for. A special token's are its name, an unused token's none.

        Raises TinyrvllmError for an id outside the vocabulary.
        """
        kind = self._kind(id)
        text = self._texts[id]
        if kind == TokenType.NORMAL:
            return self._model.token_bytes(text)
        if kind == TokenType.BYTE:
            return bytes([int(text[3:5], 16)])
        return text.encode() if kind in (*_SPECIAL, TokenType.USER_DEFINED) else b""

    def is_special(self, id: int) -> bool:
        """Whether a token is control rather than text. Raises TinyrvllmError for a false id."""
        return self._kind(id) in _SPECIAL

    @property
    def special_texts(self) -> list[str]:
        """The texts of control tokens that `split_special` finds, longest first."""
        return [self._texts[id] for id in self._special_ids]

    def text(self, id: int) -> str:
        """A token as the file spells it. Raises TinyrvllmError for an id outside the vocabulary."""
        self._kind(id)
        return self._texts[id]

    def _kind(self, id: int) -> int:
        if not 0 <= id < self.vocab_size:
            raise TinyrvllmError(f"token ids are 0 to {self.vocab_size - 1}, found {id}")
        return self._kinds[id]

    def _split(self, text: str, special_ids: list[int]) -> list[str | int]:
        """Cut out tokens by their text: all of the longest first, then the next, as llama.cpp."""
        parts: list[str | int] = [text] if text else []
        for id in special_ids:
            if self._texts[id] not in text:
                continue
            pieces: list[str | int] = []
            for part in parts:
                if isinstance(part, int):
                    pieces.append(part)
                    continue
                first, *rest = part.split(self._texts[id])
                pieces.append(first)
                for piece in rest:
                    stripped = piece.lstrip(_C_WHITESPACE) if id in self._strip_after else piece
                    pieces += [id, stripped]
            parts = [piece for piece in pieces if piece != ""]
        return parts

    def _of_kinds(self, kinds: tuple[int, ...]) -> list[int]:
        return [id for id, kind in enumerate(self._kinds) if kind in kinds]

    def _read_id(self, file: GGUFFile, name: str, default: int | None) -> int | None:
        key = f"tokenizer.ggml.{name}_token_id"
        id = file.get(key, int, None)
        if id is None:
            return default if default is not None and default < self.vocab_size else None
        if not 0 <= id < self.vocab_size:
            raise file.error(f"the key {key!r} must be an id below {self.vocab_size}, found {id}")
        return id

    def _added(self, file: GGUFFile, name: str, id: int | None, default: bool) -> list[int]:
        if not file.get(f"tokenizer.ggml.add_{name}_token", bool, default):
            return []
        if id is None:
            raise file.error(
                f"the tokenizer adds {name.upper()} to every text, but the key "
                f"'tokenizer.ggml.{name}_token_id' is missing"
            )
        return [id]

    def _sentencepiece(self, file: GGUFFile, ids: dict[str, int]) -> SentencePiece:
        unknown = 0 if self.unk_id is None else self.unk_id
        byte_ids = [ids.get(f"<0x{byte:02X}>", unknown) for byte in range(256)]
        plain = ids.copy()
        for id in self._of_kinds(_NOT_PLAIN):
            del plain[self._texts[id]]  # a user's "<", "/s" and ">" must not merge to </s>
        return SentencePiece(file, plain, byte_ids)

    def _end_of_generation(self, file: GGUFFile, ids: dict[str, int]) -> frozenset[int]:
        """All tokens that end a generation; what is known by its text becomes a control token."""
        ends: set[int | None] = {ids[text] for text in _END_TEXTS if text in ids}
        by_text = set(ends)
        for name, texts in _FILL_IN_MIDDLE_TEXTS.items():
            id = self._read_id(file, name, None)
            if id is None:
                id = next((ids[text] for text in texts if text in ids), None)
                by_text.add(id)
            if name in _ENDING_FILL_IN_MIDDLE:
                ends.add(id)
        ends |= {self.eos_id, self._read_id(file, "eot", None), self._read_id(file, "eom", None)}
        for id in by_text:
            if id is not None:
                self._kinds[id] = TokenType.CONTROL
        return frozenset(id for id in ends if id is not None)

    def _stripping_ids(self, file: GGUFFile) -> frozenset[int]:
        """Tokens that swallow the white space after them: Phi-3's, which files do not record."""
        name = file.get("general.name", str, "").lower()
        if "phi-3" not in name and "phi3" not in name:
            return frozenset()
        keeping = ("<unk>", "<s>", "<|endoftext|>")
        return frozenset(id for id in self._parsed_ids if self._texts[id] not in keeping)


def _read_texts(file: GGUFFile) -> list[str]:
    texts = list(file.get("tokenizer.ggml.tokens", StringArray))
    if not texts:
        raise file.error("the key 'tokenizer.ggml.tokens' is empty: there is no vocabulary")
    if "" in texts:
        texts = [text or f"[EMPTY_{id}]" for id, text in enumerate(texts)]
    return texts


def _read_kinds(file: GGUFFile, texts: list[str]) -> list[int]:
    kinds = file.get("tokenizer.ggml.token_type", np.ndarray, None)
    if kinds is None:
        return [TokenType.NORMAL] * len(texts)
    if len(kinds) != len(texts) or kinds.dtype.kind not in "iu":
        raise file.error(
            f"the key 'tokenizer.ggml.token_type' must be {len(texts)} integers, one for each of "
            f"'tokenizer.ggml.tokens', found {len(kinds)} of type {kinds.dtype}"
        )
    for id in np.flatnonzero(kinds == TokenType.BYTE).tolist():
        if not _BYTE_TOKEN.fullmatch(texts[id]):
            raise file.error(
                f"'tokenizer.ggml.token_type' says that token {id} is a byte, so it must look like "
                f"'<0x0A>' in 'tokenizer.ggml.tokens', found {texts[id]!r}"
            )
    return kinds.tolist()


def _as_text(text: str | bytes) -> str:
    """Characters, with a surrogate escape for each byte that is not UTF-8."""
    if isinstance(text, str):
        text = _LONE_SURROGATE.sub("\ufffd", text).encode("utf-8", "surrogateescape")
    return text.decode("utf-8", "surrogateescape")
