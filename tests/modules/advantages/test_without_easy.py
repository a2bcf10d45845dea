"""Easy questions have no advantage, the others that of the base."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from notebooks.eta import sum_of_absolute_advantage
from tagrpo.lab.objectives import averaged
from tagrpo.modules.advantages import (
    EntropyAdaptiveAdvantage,
    GroupAdvantage,
    PassAtKAdvantage,
    WithoutEasyAdvantage,
)


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
    assert WithoutEasyAdvantage(GroupAdvantage(scale="none"))(groups).tolist() == [0, 0, 0, 0, 0.5, 0.5, 0.5, -1.5]


def test_the_base_is_asked_for_its_needs_and_its_expectation(pools):
    assert WithoutEasyAdvantage(EntropyAdaptiveAdvantage(2)).needs_entropy
    assert not WithoutEasyAdvantage(GroupAdvantage()).needs_entropy
    groups, base = pools((2, 6), (7, 1)), PassAtKAdvantage(2, "bootstrap", num_groups=4)
    expected = averaged(base, groups)
    expected[8:] = 0
    assert torch.equal(averaged(WithoutEasyAdvantage(base), groups), expected)


def test_impossible_options_are_refused():
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
