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
    ],
)
def test_parameters_out_of_range_are_named(name: str, value: object) -> None:
    with pytest.raises(TinyrvllmError, match=f"{name} must be"):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


def test_one_stop_string_needs_no_tuple() -> None:
    assert SamplingParams(stop="\n").stop == ("\n",)  # type: ignore[arg-type]
