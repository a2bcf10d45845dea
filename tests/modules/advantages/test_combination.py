"""Eq. 18 by hand."""

from __future__ import annotations

from dataclasses import replace

import torch

from tagrpo.modules.advantages import CombinationAdvantage, GroupAdvantage, PassAtKAdvantage


def test_accuracy_moves_the_weight_from_pass_at_1_to_pass_at_k(pools):
    groups = replace(pools((1, 7), (4, 4), (7, 1), (0, 8), (8, 0)), rewards=torch.randn(40))
    share = torch.tensor([1 / 8, 1 / 2, 7 / 8, 0.0, 1.0]).repeat_interleave(8)
    expected = share * PassAtKAdvantage(4)(groups) + (1 - share) * GroupAdvantage(unbiased=False)(groups)
    torch.testing.assert_close(CombinationAdvantage(4)(groups), expected)


def test_an_easy_pool_without_failing_groups_keeps_a_share_of_pass_at_1(pools):
    # 7 of 8 correct, no 4 of them all wrong: ⅛ of (1 − 7/8) / σ, and of −7/8 / σ, with σ² = 7/8 · 1/8.
    advantages = CombinationAdvantage(4, epsilon=0.0)(pools((7, 1)))
    expected = torch.tensor([1 / 7**0.5] * 7 + [-(7**0.5)]) / 8
    torch.testing.assert_close(advantages, expected)


def test_both_parts_share_one_pool(pools):
    groups = replace(pools((1, 7)), prompt=torch.tensor([0, 0, 1, 1, 1, 1, 1, 1]))
    advantages = CombinationAdvantage(1, group_by="prompt", epsilon=0.0)(groups)
    torch.testing.assert_close(advantages, torch.tensor([1.0, -1.0, 0, 0, 0, 0, 0, 0]))
