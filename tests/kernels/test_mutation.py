"""Broken kernels are caught: every dropped barrier, and a sample of moved bounds and strides."""

import random

import pytest

from tests.kernels.mutate import KERNELS, Mutant, judge, mutants

ALL = [mutant for shader in KERNELS for mutant in mutants(shader)]
BARRIERS = [mutant for mutant in ALL if mutant.rule == "barrier"]


@pytest.mark.long
@pytest.mark.parametrize("mutant", BARRIERS, ids=str)
def test_a_dropped_barrier_is_caught(mutant: Mutant) -> None:
    assert judge(mutant) != "survived"


@pytest.mark.long
def test_most_moved_bounds_and_strides_are_caught() -> None:
    """Nine of ten; the docstring of mutate.py says why some changes change nothing."""
    others = [mutant for mutant in ALL if mutant.rule != "barrier"]
    verdicts = {m: judge(m) for m in random.Random(1).sample(others, 40)}
    real = {m: verdict for m, verdict in verdicts.items() if verdict != "refused"}
    survivors = [str(m) for m, verdict in real.items() if verdict == "survived"]
    assert len(survivors) <= len(real) / 10, survivors
