"""Majority votes against counting, and what answers say of their variety."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from tagrpo.metrics.functional import answer_entropy, majority_vote


def majority(answers, correct):
    wrong = Counter(answer for answer, right in zip(answers, correct, strict=True) if not right)
    wrong.pop(None, None)
    return majority_vote(sum(correct), list(wrong.values()))


def vote(answers, correct):
    """What a majority vote is worth; the correct responses vote together, silent ones not at all."""
    votes = Counter(
        "right" if correct[i] else answers[i]
        for i in range(len(answers))
        if correct[i] or answers[i] is not None
    )
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
def test_a_majority_is_that_of_all_votes(answers, right):
    correct = [answer in right for answer in answers]
    assert majority(answers, correct) == pytest.approx(vote(answers, correct))


def test_answer_entropy_is_that_of_the_shares():
    shares = [4 / 8, 2 / 8, 1 / 8, 1 / 8]
    answers = ["1"] * 4 + ["2"] * 2 + ["3", None]
    found = answer_entropy(answers, torch.tensor([3] * 8))
    assert found.tolist() == pytest.approx([-sum(p * math.log(p) for p in shares)])
