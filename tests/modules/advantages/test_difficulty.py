"""Strategies of Pass@k training by the difficulty of questions: equations by hand, and which question gets what."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from notebooks.eta import sum_of_absolute_advantage
from tagrpo.lab.objectives import averaged
from tagrpo.modules.advantages import (
    CombinationAdvantage,
    EntropyAdaptiveAdvantage,
    ExceedingPassAtKAdvantage,
    GroupAdvantage,
    PassAtKAdvantage,
    WithoutEasyAdvantage,
)


def test_advantages_are_scaled_by_the_number_of_correct_responses(pools):
    groups = pools((1, 7), (2, 6), (0, 8), (8, 0))
    factor = torch.tensor([4 / (10 * math.log(1.5)), 4 / (10 * math.log(2.5)), 0.0, 0.0]).repeat_interleave(8)
    torch.testing.assert_close(ExceedingPassAtKAdvantage(4)(groups), factor * PassAtKAdvantage(4)(groups))


@pytest.mark.parametrize("k", [1, 4, 8])
def test_the_sum_peaks_at_one_correct_response(k):
    # arXiv 2508.10751, §4.2.1: "the peak … is shifted forward to the position where the correctness is 1/32".
    assert int(sum_of_absolute_advantage(ExceedingPassAtKAdvantage(k), 32).argmax()) == 1


def test_impossible_options_of_exceeding_are_refused():
    with pytest.raises(ValueError, match=r"advantage\.k"):
        ExceedingPassAtKAdvantage(0)


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


def which(advantages, groups, k):
    """`1` or `k` for each question, by the strategy whose advantages it has."""
    names = []
    for question in groups.question.unique():
        rows = groups.question == question
        one = torch.equal(advantages[rows], GroupAdvantage(unbiased=False)(groups)[rows])
        names.append("1" if one else "k")
        assert one or torch.equal(advantages[rows], PassAtKAdvantage(k)(groups)[rows])
    return "".join(names)


@pytest.mark.parametrize(
    ("fraction", "expected"),
    [(0.0, "kkkkk"), (0.5, "k1kk1"), (0.6, "k11k1"), (0.99, "111k1"), (1.0, "11111")],
)
def test_the_questions_of_highest_entropy_use_pass_at_1(fraction, expected, pools):
    # Question entropies .2 .9 .5 .1 .8: with one half, ⌊2.5⌋ = 2 of the 5 exploit.
    entropy = torch.tensor([0.2, 0.9, 0.5, 0.1, 0.8]).repeat_interleave(8) + torch.tensor([-0.05, 0.05] * 20)
    groups = pools(*[(2, 6)] * 5, entropy=entropy)
    assert which(EntropyAdaptiveAdvantage(4, fraction)(groups), groups, 4) == expected


def test_entropy_is_averaged_over_responses_of_ragged_questions(pools):
    # Means .5 and .6, although the sums are 4 and 2.4.
    groups = pools((2, 6), (1, 3), entropy=torch.tensor([0.5] * 8 + [0.0, 0.0, 1.2, 1.2]))
    assert which(EntropyAdaptiveAdvantage(2)(groups), groups, 2) == "k1"


def test_equal_entropies_favour_the_smaller_id(pools):
    groups = pools((2, 6), (2, 6), entropy=torch.full((16,), 0.3))
    assert which(EntropyAdaptiveAdvantage(4)(groups), groups, 4) == "1k"


def test_entropy_is_asked_for_and_its_absence_named(pools):
    assert EntropyAdaptiveAdvantage.needs_entropy
    groups = pools((1, 3))
    for entropy in (None, torch.tensor([0.1, 0.1, torch.nan, 0.1])):
        with pytest.raises(ValueError, match=r"RewardGroups\.entropy"):
            EntropyAdaptiveAdvantage(2)(replace(groups, entropy=entropy))


def test_impossible_options_of_entropy_adaptive_are_refused():
    for options, name in (
        ({"fraction": 1.5}, "fraction"),
        ({"group_by": "batch"}, "group_by"),
        ({"k": 0}, "k"),
    ):
        with pytest.raises(ValueError, match=name):
            EntropyAdaptiveAdvantage(**{"k": 2} | options)


def test_of_questions_with_equal_entropies_the_first_use_pass_at_1(pools):
    groups = pools(*[(1, 3)] * 20, entropy=torch.ones(80))
    assert which(EntropyAdaptiveAdvantage(2, 0.5)(groups), groups, 2) == 10 * "1" + 10 * "k"


def test_all_or_none_of_the_questions_may_explore(pools):
    groups = replace(pools((1, 3), (2, 2)), entropy=torch.arange(8.0))
    one, many = GroupAdvantage(unbiased=False), PassAtKAdvantage(2)
    assert torch.equal(EntropyAdaptiveAdvantage(2, fraction=1.0)(groups), one(groups))
    assert torch.equal(EntropyAdaptiveAdvantage(2, fraction=0.0)(groups), many(groups))
    for fraction in (-0.01, 1.01):
        with pytest.raises(ValueError, match="between 0 and 1"):
            EntropyAdaptiveAdvantage(2, fraction=fraction)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_an_entropy_that_is_not_finite_is_refused(broken, pools):
    entropy = torch.ones(4)
    entropy[2] = broken
    with pytest.raises(ValueError, match="RewardGroups.entropy.*others"):
        EntropyAdaptiveAdvantage(2)(replace(pools((1, 3)), entropy=entropy))


def test_without_entropies_the_error_says_so(pools):
    with pytest.raises(ValueError, match="RewardGroups.entropy.*None"):
        EntropyAdaptiveAdvantage(2)(pools((1, 3)))


@pytest.mark.parametrize("base", [GroupAdvantage(unbiased=False), PassAtKAdvantage(2)])
def test_only_questions_above_the_threshold_lose_their_advantages(base, pools):
    groups = pools((1, 9), (6, 4), (7, 3), (9, 1))  # the second stands at the threshold
    expected = base(groups)
    expected[20:] = 0
    assert torch.equal(WithoutEasyAdvantage(base)(groups), expected)
    assert torch.equal(WithoutEasyAdvantage(base, threshold=1.0)(groups), base(groups))


def test_the_curve_is_that_of_pass_at_1_cut_off_where_it_is_easy():
    # Fig. 18a: 2 √(c (n − c)) up to 19 of 32, then nothing.
    eta = sum_of_absolute_advantage(WithoutEasyAdvantage(GroupAdvantage(unbiased=False, epsilon=0.0)), 32)
    c = torch.arange(33)
    torch.testing.assert_close(eta, 2 * (c * (32 - c)).sqrt() * (c <= 19), atol=1e-4, rtol=1e-5)


def test_verdicts_decide_what_is_easy_and_rewards_what_it_earns(pools):
    groups = replace(pools((3, 1), (1, 3)), rewards=torch.tensor([0.0, 0.0, 0.0, 1.0, 2.0, 2.0, 2.0, 0.0]))
    assert WithoutEasyAdvantage(GroupAdvantage(scale="none"))(groups).tolist() == [
        0,
        0,
        0,
        0,
        0.5,
        0.5,
        0.5,
        -1.5,
    ]


def test_the_base_is_asked_for_its_needs_and_its_expectation(pools):
    assert WithoutEasyAdvantage(EntropyAdaptiveAdvantage(2)).needs_entropy
    assert not WithoutEasyAdvantage(GroupAdvantage()).needs_entropy
    groups, base = pools((2, 6), (7, 1)), PassAtKAdvantage(2, "bootstrap", num_groups=4)
    expected = averaged(base, groups)
    expected[8:] = 0
    assert torch.equal(averaged(WithoutEasyAdvantage(base), groups), expected)


def test_impossible_options_of_without_easy_are_refused():
    with pytest.raises(ValueError, match=r"advantage\.threshold"):
        WithoutEasyAdvantage(GroupAdvantage(), threshold=1.1)
    with pytest.raises(TypeError, match=r"advantage\.base"):
        WithoutEasyAdvantage(base=None)


def test_the_threshold_is_a_share(pools):
    groups = pools((0, 4), (1, 3))
    kept = WithoutEasyAdvantage(GroupAdvantage(), threshold=0.0)(groups)
    assert kept.tolist() == [0.0] * 8  # whatever has been solved once is easy
    for threshold in (-0.01, 1.01):
        with pytest.raises(ValueError, match="between 0 and 1"):
            WithoutEasyAdvantage(GroupAdvantage(), threshold=threshold)
