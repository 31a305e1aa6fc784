"""Broken kernels are caught: every dropped barrier, and moved bounds and strides but for those
that are known to change nothing (survivors.tsv)."""

import random

import pytest

from tests.kernels.mutate import KERNELS, Mutant, explanations, judge, mutants

ALL = [mutant for shader in KERNELS for mutant in mutants(shader)]
BARRIERS = [mutant for mutant in ALL if mutant.rule == "barrier"]


def test_explanations_are_of_changes_that_are_possible() -> None:
    """A line that was edited since must be explained anew."""
    possible = {(mutant.file, mutant.rule, mutant.text.strip()) for mutant in ALL}
    assert set(explanations()) <= possible
    assert not any(rule == "barrier" for _, rule, _ in explanations())
    assert all(explanations().values())


@pytest.mark.long
@pytest.mark.parametrize("mutant", BARRIERS, ids=str)
def test_a_dropped_barrier_is_caught(mutant: Mutant) -> None:
    assert judge(mutant) != "survived"


@pytest.mark.long
def test_moved_bounds_and_strides_are_caught() -> None:
    others = [mutant for mutant in ALL if mutant.rule != "barrier" and not mutant.why_it_survives]
    verdicts = {mutant: judge(mutant) for mutant in random.Random(1).sample(others, 40)}
    assert not [str(mutant) for mutant, verdict in verdicts.items() if verdict == "survived"]
