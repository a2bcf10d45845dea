"""Majority votes against enumeration of all subsets, and what answers say of their variety."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tagrpo.metrics.functional import answer_entropy, majority_probability


def maj_at_k(answers, correct, k):
    wrong = Counter(answer for answer, right in zip(answers, correct, strict=True) if not right)
    silent = wrong.pop(None, 0)
    return majority_probability(sum(correct), tuple(sorted(wrong.values())), silent, k)


def vote(answers, correct, subset):
    """What a majority vote of the subset is worth; the correct responses vote together, silent ones not at all."""
    votes = Counter("right" if correct[i] else answers[i] for i in subset if correct[i] or answers[i] is not None)
    top = max(votes.values(), default=0)
    leaders = [name for name, count in votes.items() if count == top]
    return ("right" in leaders) / len(leaders) if leaders else 0.0


@pytest.mark.parametrize(
    ("answers", "right"),
    [
        (["1", "1", "2", "3", None, "2", "1"], {"1"}),
        (["a", "b", "c", "d"], {"a"}),
        ([None, None, "x", "y", "y"], {"x"}),
        (["7", "7", "7"], set()),
        (["5", "6", "5", "6"], {"5", "6"}),
        ([None, "4", None], {"4"}),
    ],
)
def test_maj_at_k_is_the_mean_over_all_subsets(answers, right):
    correct = [answer in right for answer in answers]
    for k in range(1, len(answers) + 1):
        subsets = list(combinations(range(len(answers)), k))
        expected = sum(vote(answers, correct, subset) for subset in subsets) / len(subsets)
        assert maj_at_k(answers, correct, k) == pytest.approx(expected), k


def test_more_votes_than_samples_are_refused():
    with pytest.raises(ValueError, match="k=3 with 2 samples"):
        maj_at_k(["1", "2"], [True, False], 3)


def test_answer_entropy_is_that_of_the_shares():
    shares = [4 / 8, 2 / 8, 1 / 8, 1 / 8]
    answers = ["1"] * 4 + ["2"] * 2 + ["3", None]
    found = answer_entropy(answers, torch.tensor([3] * 8))
    assert found.tolist() == pytest.approx([-sum(p * math.log(p) for p in shares)])


def test_the_number_of_votes_is_from_one_to_all():
    for k in (0, 3):
        with pytest.raises(ValueError, match=f"got k={k} with 2 samples"):
            maj_at_k(["1", "2"], [True, False], k)


@given(st.integers(1, 40), st.lists(st.integers(1, 20), min_size=1, max_size=4), st.integers(0, 9), st.data())
def test_the_probability_of_a_majority_is_one(correct, rivals, silent, data):
    k = data.draw(st.integers(1, correct + sum(rivals) + silent))
    assert 0 <= majority_probability(correct, tuple(sorted(rivals)), silent, k) <= 1
