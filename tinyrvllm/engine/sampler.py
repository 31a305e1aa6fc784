"""From logits to a token: temperature, top-k, top-p, min-p, with a generator per request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tinyrvllm.errors import TinyrvllmError


class LogitsError(TinyrvllmError):
    """The model's output is no distribution."""


@dataclass(frozen=True)
class TokenLogprobs:
    """How likely a sampled token was.

    Attributes:
        logprob: its natural logarithm of probability.
        top: (token id, logprob) of the likeliest tokens, as many as were asked for.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class SamplingParams:
    """How one request is continued. Names and meanings are vLLM's.

    Attributes:
        max_tokens: the most tokens to generate; None: as many as the context has room for.
        temperature: logits are divided by it; 0 is greedy.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of most likely tokens whose probabilities reach this sum.
        min_p: keep tokens at least this likely, relative to the most likely one.
        seed: same seed, same text; None draws a fresh one.
        stop: the text ends before the first of these strings.
        ignore_eos: go on past the model's end-of-generation tokens.
        repetition_penalty: positive logits of tokens in prompt or answer are divided by it,
            negative ones multiplied (Keskar et al. 2019); 1 is off.
        presence_penalty: subtracted from the logits of tokens in the answer.
        frequency_penalty: subtracted from them once for each time they are in it.
        logit_bias: token id -> what is added to its logit.
        logprobs: how many of the likeliest tokens to report with each token, 0 to 20; None reports
            nothing. They are of the model's own distribution, before all of the above.
    """

    max_tokens: int | None = 16
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = field(default=())
    ignore_eos: bool = False
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    logprobs: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        checks = {
            "max_tokens": (self.max_tokens is None or self.max_tokens >= 1, "at least 1, or None"),
            "temperature": (0 <= self.temperature < float("inf"), "a number from 0 up"),
            "top_k": (self.top_k >= 0, "0 (all) or more"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "min_p": (0 <= self.min_p <= 1, "from 0 to 1"),
            "seed": (self.seed is None or self.seed >= 0, "0 or more"),
            "stop": (all(self.stop), "strings that are not empty"),
            "repetition_penalty": (0 < self.repetition_penalty < np.inf, "a number above 0"),
            "presence_penalty": (-2 <= self.presence_penalty <= 2, "from -2 to 2"),
            "frequency_penalty": (-2 <= self.frequency_penalty <= 2, "from -2 to 2"),
            "logit_bias": (
                all(-100 <= bias <= 100 for bias in (self.logit_bias or {}).values()),
                "token ids with numbers from -100 to 100",
            ),
            "logprobs": (self.logprobs is None or 0 <= self.logprobs <= 20, "from 0 to 20"),
        }
        for name, (good, expected) in checks.items():
            if not good:
                raise TinyrvllmError(
                    f"{name} must be {expected}, and {getattr(self, name)!r} was given"
                )

    @property
    def is_penalised(self) -> bool:
        """Whether what was sampled changes the logits."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    @property
    def is_argmax(self) -> bool:
        """Whether each token is simply the likeliest, and nobody asks how likely it is."""
        plain = self.temperature == 0 and not self.is_penalised and not self.logit_bias
        return plain and self.logprobs is None


def check_logits(has_nan: bool, all_masked: bool) -> None:
    """Raises LogitsError for a row of logits with a NaN, or in which no token is possible."""
    if has_nan or all_masked:
        what = "NaN among the logits" if has_nan else "all logits are -inf"
        raise LogitsError(f"{what}: the weights are damaged or the computation overflowed")


class Sampler:
    """Picks the tokens of one request.

    In vLLM's order: logit bias, penalties, temperature, min-p, top-k, top-p. One uniform number is
    drawn per sampled token, so a seed gives the same text whatever else runs beside this request.
    """

    def __init__(self, params: SamplingParams, prompt_ids: Sequence[int] = ()) -> None:
        self.params = params
        self.generator = np.random.default_rng(params.seed)
        self._prompt = np.unique(np.asarray(prompt_ids, np.int64))
        self._counts: dict[int, int] = {}  # of the tokens sampled so far

    def sample(self, logits: np.ndarray) -> int:
        """The next token of a row of logits, float32 [vocab].

        Greedy takes the lowest index among equals.

        Raises:
            LogitsError: a NaN among the logits, or no token is possible (all -inf).
        """
        best = int(np.argmax(logits))
        # argmax finds a NaN first
        check_logits(bool(np.isnan(logits[best])), bool(logits[best] == -np.inf))
        if logits[best] < np.inf:
            adjusted = self._adjusted(logits)
            best = int(np.argmax(adjusted))
            if self.params.temperature > 0:
                best = self._draw(adjusted, adjusted[best])
        if self.params.is_penalised:
            self._counts[best] = self._counts.get(best, 0) + 1
        return best

    def logprobs(self, logits: np.ndarray, token: int) -> TokenLogprobs:
        """How likely a token is by a row of logits, and which are the likeliest."""
        shifted = logits.astype(np.float64) - logits.max()
        all_logprobs = shifted - np.log(np.exp(shifted).sum())
        wanted = min(self.params.logprobs or 0, len(logits))
        top = np.argpartition(-all_logprobs, wanted - 1)[:wanted] if wanted else np.arange(0)
        top = top[np.lexsort((top, -all_logprobs[top]))]
        listed = tuple((int(id), float(all_logprobs[id])) for id in top)
        return TokenLogprobs(token, float(all_logprobs[token]), listed)

    def _adjusted(self, logits: np.ndarray) -> np.ndarray:
        """With bias and penalties; the row itself where there are none."""
        params = self.params
        if not (params.logit_bias or params.is_penalised):
            return logits
        logits = logits.copy()
        for id, bias in (params.logit_bias or {}).items():
            logits[id] += bias
        answer = np.array(list(self._counts), np.int64)
        counts = np.array(list(self._counts.values()), np.float32)
        if params.repetition_penalty != 1:
            seen = np.union1d(self._prompt, answer)
            rows, penalty = logits[seen], np.float32(params.repetition_penalty)
            logits[seen] = np.where(rows > 0, rows / penalty, rows * penalty)
        logits[answer] -= np.float32(params.frequency_penalty) * counts
        logits[answer] -= np.float32(params.presence_penalty)
        return logits

    def _draw(self, logits: np.ndarray, top: np.float32) -> int:
        tokens, probabilities = self._candidates(logits, top)
        cumulative = np.cumsum(probabilities)
        draw = self.generator.random() * cumulative[-1]
        return int(tokens[min(np.searchsorted(cumulative, draw, side="right"), len(tokens) - 1)])

    def _candidates(self, logits: np.ndarray, top: np.float32) -> tuple[np.ndarray, np.ndarray]:
        """Tokens that survive the cuts, and their float64 weights (not normalised)."""
        params = self.params
        # Shifted by the maximum, so that the largest weight is exp(0) = 1 and nothing overflows.
        with np.errstate(over="ignore"):  # a tiny temperature: -inf, whose weight is 0
            weights = np.exp((logits.astype(np.float64) - top) / params.temperature)
        tokens = np.flatnonzero(weights >= params.min_p)  # 1 is the largest weight
        if 0 < params.top_k < len(tokens):
            order = np.argsort(-weights[tokens], kind="stable")  # ties: the lower index stays
            tokens = tokens[order[: params.top_k]]
        if params.top_p < 1:
            order = np.argsort(-weights[tokens], kind="stable")
            tokens = tokens[order]
            sums = np.cumsum(weights[tokens])
            tokens = tokens[: np.searchsorted(sums, params.top_p * sums[-1]) + 1]
        return tokens, weights[tokens]
