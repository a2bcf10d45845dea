"""GRPO-LEAD's weights against its formula in plain numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tagrpo.contrib.grpo_lead.advantage import DifficultyWeightedAdvantage
from tagrpo.modules.advantages import GroupAdvantage


def weight(rho):
    return 0.4 + (1.5 - 0.4) / (1 + math.exp(10 * (rho - 0.75)))


@pytest.mark.parametrize("c", range(9))
def test_advantages_are_weighted_by_accuracy_on_one_side_and_by_inaccuracy_on_the_other(c, pools):
    groups = pools((c, 8 - c))
    expected = [
        advantage * (weight(c / 8) if advantage > 0 else weight(1 - c / 8))
        for advantage in GroupAdvantage()(groups).tolist()
    ]
    torch.testing.assert_close(DifficultyWeightedAdvantage()(groups), torch.tensor(expected))


def test_a_correct_response_to_a_hard_question_weighs_most():
    strategy = DifficultyWeightedAdvantage()
    weights = strategy.weight(torch.tensor([0.0, 0.5, 0.75, 1.0]))
    assert weights.tolist() == pytest.approx([1.4994, 1.4166, 0.95, 0.4835], abs=1e-4)


def test_accuracy_counts_verdicts_while_the_base_normalises_rewards(pools):
    groups = replace(pools((2, 6)), rewards=torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]))
    base = GroupAdvantage(scale="none")
    expected = torch.tensor([-1 / 8 * weight(3 / 4)] * 7 + [7 / 8 * weight(1 / 4)])
    torch.testing.assert_close(DifficultyWeightedAdvantage(base=base)(groups), expected)


def test_the_base_may_pool_differently(pools):
    # Accuracy over the question, advantages within each prompt.
    groups = replace(pools((2, 6)), prompt=torch.tensor([0, 1, 0, 0, 0, 1, 1, 1]))
    base = GroupAdvantage("prompt", scale="none")
    expected = torch.tensor([3 / 4 * weight(1 / 4)] * 2 + [-1 / 4 * weight(3 / 4)] * 6)
    torch.testing.assert_close(DifficultyWeightedAdvantage(base=base)(groups), expected)


def test_impossible_options_are_refused():
    for options in (
        {"low": 2.0},
        {"low": -0.1},
        {"midpoint": 1.5},
        {"steepness": -1.0},
        {"group_by": "rank"},
    ):
        with pytest.raises(ValueError, match=next(iter(options))):
            DifficultyWeightedAdvantage(**options)


def test_options_at_the_ends_of_their_ranges_are_accepted(pools):
    groups = pools((1, 3))
    base = GroupAdvantage()(groups)
    for midpoint in (0.0, 1.0):
        DifficultyWeightedAdvantage(midpoint=midpoint)
    torch.testing.assert_close(DifficultyWeightedAdvantage(low=2.0, high=2.0)(groups), 2 * base)
    torch.testing.assert_close(
        DifficultyWeightedAdvantage(low=0.0, high=1.0, steepness=0.0)(groups), 0.5 * base
    )
    for refused in (
        {"midpoint": -0.01},
        {"midpoint": 1.01},
        {"steepness": -0.01},
        {"low": -0.01},
        {"low": 1.6},
    ):
        with pytest.raises(ValueError, match="Expected"):
            DifficultyWeightedAdvantage(**refused)
