"""Sampling against distributions worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tinyrvllm.engine.sampler import LogitsError, Sampler, SamplingParams
from tinyrvllm.errors import TinyrvllmError

PROBABILITIES = np.array([0.05, 0.4, 0.1, 0.25, 0.2])
LOGITS = np.log(PROBABILITIES).astype(np.float32)


def frequencies(draws: int = 20_000, **options: object) -> np.ndarray:
    sampler = Sampler(SamplingParams(seed=7, **options))  # type: ignore[arg-type]
    counts = np.bincount([sampler.sample(LOGITS) for _ in range(draws)], minlength=5)
    return counts / draws


def renormalised(kept: list[int], temperature: float = 1.0) -> np.ndarray:
    weights = np.zeros(5)
    weights[kept] = PROBABILITIES[kept] ** (1 / temperature)
    return weights / weights.sum()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, renormalised([0, 1, 2, 3, 4])),
        ({"temperature": 2.0}, renormalised([0, 1, 2, 3, 4], 2.0)),
        ({"top_k": 2}, renormalised([1, 3])),
        ({"top_p": 0.5}, renormalised([1, 3])),  # 0.4 alone is below 0.5
        ({"top_p": 0.39}, renormalised([1])),
        ({"min_p": 0.45}, renormalised([1, 3, 4])),  # at least 0.18
        ({"top_k": 3, "top_p": 0.7}, renormalised([1, 3])),  # 0.65 / 0.85 of the three kept
    ],
)
def test_frequencies_follow_the_distribution(
    options: dict[str, float], expected: np.ndarray
) -> None:
    found = frequencies(**options)
    assert (found[expected == 0] == 0).all()
    # Five standard deviations of a binomial share.
    assert (np.abs(found - expected) <= 5 * np.sqrt(expected / 20_000) + 1e-9).all()


def test_greedy_takes_the_lowest_of_equals() -> None:
    row = np.array([0, 3, 1, 3, -np.inf], np.float32)
    assert Sampler(SamplingParams(temperature=0)).sample(row) == 1


def test_a_tiny_temperature_is_greedy() -> None:
    assert frequencies(100, temperature=1e-300)[1] == 1


def test_same_seed_same_draws() -> None:
    def draws(seed: int) -> list[int]:
        sampler = Sampler(SamplingParams(seed=seed))
        return [sampler.sample(LOGITS) for _ in range(50)]

    assert draws(1) == draws(1) != draws(2)


def picks(row: list[float], count: int, prompt: tuple[int, ...] = (), **options: object) -> list[int]:
    """Greedy picks from the same row, again and again."""
    params = SamplingParams(temperature=0, **options)  # type: ignore[arg-type]
    sampler = Sampler(params, prompt)
    return [sampler.sample(np.array(row, np.float32)) for _ in range(count)]


def test_penalties_by_hand() -> None:
    row = [3.0, 2.5, 2.0, -1.0]
    assert picks(row, 3) == [0, 0, 0]
    # 0 falls to 2.0 and 1 to 1.5, once and for good; of the equals 0 and 2 the first is taken.
    assert picks(row, 5, presence_penalty=1.0) == [0, 1, 0, 0, 0]
    # 3.0 2.5 2.0, 2.4 2.5 2.0, 2.4 1.9 2.0, 1.8 1.9 2.0, 1.8 1.9 1.4
    assert picks(row, 5, frequency_penalty=0.6) == [0, 1, 0, 2, 1]
    assert picks(row, 3, frequency_penalty=-0.1) == [0, 0, 0]
    # 3.0 2.5 2.0, 2.31 2.5 2.0, 2.31 1.92 2.0, and so it stays.
    assert picks(row, 4, repetition_penalty=1.3) == [0, 1, 0, 0]
    # The prompt counts for repetition alone.
    assert picks(row, 1, prompt=(0, 1), repetition_penalty=1.6) == [2]
    assert picks(row, 1, prompt=(0, 1), presence_penalty=2.0, frequency_penalty=2.0) == [0]
    # A negative logit is multiplied: -1.0 * 4 is below -3.
    assert picks([-1.0, -3.0], 1, prompt=(0,), repetition_penalty=4.0) == [1]


def test_a_bias_comes_before_the_penalties() -> None:
    assert picks([1.0, 0.0], 1, logit_bias={1: 2.0}) == [1]
    assert picks([1.0, 0.0], 1, logit_bias={0: -100.0}) == [1]
    # (0.0 + 2.0) / 4 = 0.5 < 1.0
    assert picks([1.0, 0.0], 1, prompt=(1,), logit_bias={1: 2.0}, repetition_penalty=4.0) == [0]


def test_a_row_is_not_changed() -> None:
    row = np.array([1.0, 2.0], np.float32)
    params = SamplingParams(temperature=0, logit_bias={0: 5.0}, presence_penalty=1.0)
    Sampler(params).sample(row)
    assert row.tolist() == [1.0, 2.0]


def test_logprobs_by_hand() -> None:
    sampler = Sampler(SamplingParams(logprobs=3))
    found = sampler.logprobs(LOGITS, 2)
    assert found.token_id == 2
    assert found.logprob == pytest.approx(np.log(0.1), abs=1e-6)
    assert [id for id, _ in found.top] == [1, 3, 4]
    assert [p for _, p in found.top] == pytest.approx(np.log([0.4, 0.25, 0.2]), abs=1e-6)
    assert Sampler(SamplingParams(logprobs=0)).logprobs(LOGITS, 2).top == ()
    assert len(Sampler(SamplingParams(logprobs=20)).logprobs(LOGITS, 2).top) == 5
    ties = Sampler(SamplingParams(logprobs=2)).logprobs(np.zeros(4, np.float32), 0)
    assert [id for id, _ in sorted(ties.top)] == [id for id, _ in ties.top]
    impossible = sampler.logprobs(np.array([0.0, -np.inf], np.float32), 1)
    assert impossible.logprob == -np.inf


@pytest.mark.parametrize(
    ("row", "message"),
    [([1, np.nan, 2], "NaN"), ([-np.inf] * 3, "all logits are -inf")],
)
@pytest.mark.parametrize("temperature", [0, 1])
def test_rows_that_are_no_distribution(row: list[float], message: str, temperature: float) -> None:
    with pytest.raises(LogitsError, match=message):
        Sampler(SamplingParams(temperature=temperature)).sample(np.array(row, np.float32))


@given(
    logits=hnp.arrays(
        np.float32,
        st.integers(1, 50),
        elements=st.floats(-(2.0**99), 2.0**99, width=32) | st.just(-np.inf),
    ),
    temperature=st.floats(0, 5),
    top_k=st.integers(0, 60),
    top_p=st.floats(0.01, 1),
    min_p=st.floats(0, 1),
)
def test_any_row_gives_a_possible_token(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    if not (logits > -np.inf).any():
        return
    params = SamplingParams(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=0
    )
    token = Sampler(params).sample(logits)
    assert 0 <= token < len(logits)
    assert logits[token] > -np.inf


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0), ("temperature", -1), ("temperature", float("nan")), ("top_k", -1),
        ("top_p", 0), ("top_p", 1.5), ("min_p", 2), ("seed", -1), ("stop", ("",)),
        ("repetition_penalty", 0), ("presence_penalty", 3), ("frequency_penalty", -2.5),
        ("logit_bias", {1: 101}), ("logprobs", 21), ("logprobs", -1),
    ],
)
def test_parameters_out_of_range_are_named(name: str, value: object) -> None:
    with pytest.raises(TinyrvllmError, match=f"{name} must be"):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


def test_one_stop_string_needs_no_tuple() -> None:
    assert SamplingParams(stop="\n").stop == ("\n",)  # type: ignore[arg-type]
