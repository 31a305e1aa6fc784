"""SentencePiece's BPE without a list of merges: of all neighbours that form a token, the pair whose
token has the highest score is merged first (llama.cpp's `llm_tokenizer_spm`).

The `tokenizers` library wants merges, and deriving half a million of them from Gemma's scores takes
longer than loading the model. This heap needs only the scores.
"""

import re
from functools import lru_cache
from heapq import heapify, heappop, heappush
from operator import add
from typing import Final

import numpy as np

from tinyrvllm.model.gguf_file import GGUFFile, StringArray

SPACE: Final = "\u2581"  # ▁ stands for a space inside tokens
_CACHED_WORD: Final = 64  # characters; longer words hardly come twice

# What llama.cpp takes for one symbol: a lead byte and as many bytes as it announces, valid or not.
_SYMBOL: Final = re.compile(
    rb"[\x00-\xbf]|[\xc0-\xdf].?|[\xe0-\xef].{0,2}|[\xf0-\xff].{0,3}", re.DOTALL
)


class SentencePiece:
    """The vocabulary and scores of a `llama` GGUF file.

    `ids` maps the text of each token that ordinary text may become to its id. A character that is
    no token becomes its `byte_ids` [256]. Raises GGUFError for missing or unusable scores.
    """

    adds_bos: Final = True  # where the file does not say

    def __init__(self, file: GGUFFile, ids: dict[str, int], byte_ids: list[int]) -> None:
        scores = file.get("tokenizer.ggml.scores", np.ndarray)
        vocab_size = len(file.get("tokenizer.ggml.tokens", StringArray))
        if len(scores) != vocab_size or scores.dtype.kind not in "if" or np.isnan(scores).any():
            raise file.error(
                f"the key 'tokenizer.ggml.scores' must be {vocab_size} numbers, one for each of "
                f"'tokenizer.ggml.tokens', found {len(scores)} of type {scores.dtype}"
            )
        _, ranks = np.unique(-scores.astype(np.float64), return_inverse=True)
        self._ranks = ranks.tolist()  # of each id: 0 is merged first, equal scores are equal ranks
        self._ids = ids
        self._byte_ids = byte_ids
        # Nothing merges across a space that no token has within it (in Gemma's vocabulary one
        # does, after ">"). Text is cut there into words, and a word is merged only once.
        joined = "\ud800".join(ids)  # with what no text in UTF-8 can hold
        inner = "".join(set(re.findall(f"[^{SPACE}\ud800](?={SPACE})", joined)))
        self._cuts = re.compile(f"(?<![{SPACE}{re.escape(inner)}])(?={SPACE})")
        self._cached_word = lru_cache(maxsize=1 << 15)(self._word)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text without special tokens; lone surrogates are undecodable bytes."""
        text = text.replace(" ", SPACE)
        try:
            text.encode()
        except UnicodeEncodeError:
            data = text.encode("utf-8", "surrogateescape")
            symbols = [s.decode("utf-8", "surrogateescape") for s in _SYMBOL.findall(data)]
            return self._encode_symbols(symbols)
        ids: list[int] = []
        for word in self._cuts.split(text):
            ids += self._cached_word(word) if len(word) <= _CACHED_WORD else self._word(word)
        return ids

    def _word(self, word: str) -> list[int]:
        return self._encode_symbols(list(word))

    def _encode_symbols(self, symbols: list[str]) -> list[int]:
        ids = []
        for symbol in self._merged(symbols):
            if symbol in self._ids:
                ids.append(self._ids[symbol])
            else:
                data = symbol.encode("utf-8", "surrogateescape")
                ids += [self._byte_ids[byte] for byte in data]
        return ids

    def _rank(self, text: str) -> int:
        """When two symbols that are this text together are merged; -1: never."""
        id = self._ids.get(text)
        return -1 if id is None else self._ranks[id]

    def _merged(self, symbols: list[str]) -> list[str]:
        """Each merge proposes at most two more, so n symbols cost at most 3 n proposals."""
        size = len(symbols)
        before = list(range(-1, size - 1))
        after = [*range(1, size), size]  # size: none
        symbols = [*symbols, ""]
        # The best one first, of equals the leftmost: rank * size + left, for one integer is
        # compared faster than a tuple.
        ranks = map(self._rank, map(add, symbols[:-2], symbols[1:-1]))
        candidates = [rank * size + left for left, rank in enumerate(ranks) if rank >= 0]
        heapify(candidates)
        while candidates:
            rank, left = divmod(heappop(candidates), size)
            right = after[left]
            if not symbols[left] or not symbols[right]:
                continue  # merged into another since it was proposed, or last by now
            merged = symbols[left] + symbols[right]
            if self._rank(merged) != rank:
                continue  # one of the two has grown
            symbols[left], symbols[right] = merged, ""
            after[left] = end = after[right]
            if end < size:
                before[end] = left
                if (rank := self._rank(merged + symbols[end])) >= 0:
                    heappush(candidates, rank * size + left)
            if (left := before[left]) >= 0 and (rank := self._rank(symbols[left] + merged)) >= 0:
                heappush(candidates, rank * size + left)
        return [symbol for symbol in symbols if symbol]

    @staticmethod
    def token_bytes(text: str) -> bytes:
        """The bytes that a token of the vocabulary stands for."""
        return text.replace(SPACE, " ").encode()
