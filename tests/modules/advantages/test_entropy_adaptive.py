"""Which question gets which strategy."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tagrpo.modules.advantages import EntropyAdaptiveAdvantage, GroupAdvantage, PassAtKAdvantage


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
    ("fraction", "expected"), [(0.0, "kkkkk"), (0.5, "k1kk1"), (0.6, "k11k1"), (0.99, "111k1"), (1.0, "11111")]
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


def test_impossible_options_are_refused():
    for options, name in (({"fraction": 1.5}, "fraction"), ({"group_by": "batch"}, "group_by"), ({"k": 0}, "k")):
        with pytest.raises(ValueError, match=name):
            EntropyAdaptiveAdvantage(**{"k": 2} | options)


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
    with pytest.raises(ValueError, match="finite policy entropy"):
        EntropyAdaptiveAdvantage(2)(replace(pools((1, 3)), entropy=entropy))
