"""The damping of SEED-GRPO against scipy's entropy of answer counts."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import entropy

from tagrpo.modules.advantages import GroupAdvantage, SemanticEntropyAdvantage
from tagrpo.modules.advantages.semantic_entropy import semantic_entropy

ANSWERS = ["1", "1", "2", "2", "2", "3", None, None] + ["1"] * 8 + [None] * 8 + list("abcdefgh")
COUNTS = [[2, 3, 1, 1, 1], [8], [1] * 8, [1] * 8]


def test_entropy_is_that_of_the_counts_of_answers(pools):
    groups = pools(*[(3, 5)] * 4, answers=ANSWERS)
    expected = [entropy(counts) for counts in COUNTS]
    assert semantic_entropy(groups, groups.question, 4).tolist() == pytest.approx(expected, abs=1e-12)


def test_the_same_answer_to_another_question_is_another_cluster(pools):
    groups = pools((1, 1), (1, 1), answers=["5", "5", "5", "6"])
    assert semantic_entropy(groups, groups.question, 2).tolist() == pytest.approx([0.0, math.log(2)])


@pytest.mark.parametrize(
    ("damping", "function"), [("linear", lambda x: 1 - x), ("exponential", lambda x: math.exp(-x))]
)
def test_advantages_are_damped_by_normalised_entropy(damping, function, pools):
    groups = pools(*[(3, 5)] * 4, answers=ANSWERS)
    factors = [function(0.6 * entropy(counts) / math.log(8)) for counts in COUNTS]
    expected = GroupAdvantage(scale="none")(groups) * torch.tensor(factors, dtype=torch.float32).repeat_interleave(8)
    torch.testing.assert_close(SemanticEntropyAdvantage(0.6, damping)(groups), expected)


def test_agreement_is_not_damped_and_full_disagreement_is_damped_most(pools):
    groups = pools(*[(3, 5)] * 4, answers=ANSWERS)
    advantages = SemanticEntropyAdvantage(1.0)(groups).view(4, 8)
    torch.testing.assert_close(advantages[1], GroupAdvantage(scale="none")(groups)[8:16])
    torch.testing.assert_close(advantages[2:], torch.zeros(2, 8))
    assert torch.equal(SemanticEntropyAdvantage(0.0)(groups), GroupAdvantage(scale="none")(groups))


def test_full_disagreement_can_be_damped_to_exactly_zero(pools):
    # Exactly, whatever the logarithms round to: such responses are then left out of the update.
    for size in range(2, 65):
        assert not SemanticEntropyAdvantage(1.0)(pools((1, size - 1), answers=[None] * size)).any()


def test_a_single_response_is_left_alone(pools):
    groups = pools((1, 0), answers=["1"])
    assert SemanticEntropyAdvantage(1.0, base=GroupAdvantage(baseline="none", scale="none"))(groups).tolist() == [1.0]


def test_missing_answers_are_named(pools):
    for answers in (None, [], ["1"]):
        with pytest.raises(ValueError, match=r"RewardGroups\.answers"):
            SemanticEntropyAdvantage(0.5)(replace(pools((1, 1)), answers=answers))


def test_impossible_options_are_refused():
    for options, name in (
        ({"alpha": -0.1}, "alpha"),
        ({"alpha": 1.5}, "alpha"),
        ({"alpha": 0.5, "damping": "focal"}, "damping"),
        ({"alpha": 0.5, "group_by": "rank"}, "group_by"),
    ):
        with pytest.raises(ValueError, match=name):
            SemanticEntropyAdvantage(**options)
    SemanticEntropyAdvantage(1.5, "exponential")
