"""The shapes of Fig. 9 of Pass@k training."""

from __future__ import annotations

import pytest
import torch

from notebooks.eta import sum_of_absolute_advantage
from tagrpo.modules.advantages import (
    CombinationAdvantage,
    EntropyAdaptiveAdvantage,
    GroupAdvantage,
    PassAtKAdvantage,
)

pytestmark = pytest.mark.pages


def test_pass_at_1_is_symmetric_and_peaks_at_one_half():
    eta = sum_of_absolute_advantage(GroupAdvantage(unbiased=False, epsilon=0.0), 32)
    c = torch.arange(33)
    torch.testing.assert_close(eta, 2 * (c * (32 - c)).sqrt(), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(eta, eta.flip(0), atol=1e-4, rtol=1e-5)
    assert int(eta.argmax()) == 16


@pytest.mark.parametrize(("k", "peak"), [(2, 12), (4, 8), (8, 4)])
def test_pass_at_k_peaks_at_harder_questions_and_falls_to_zero(k, peak):
    # The paper reports 25 % for n = 32, which is k = 4.
    eta = sum_of_absolute_advantage(PassAtKAdvantage(k), 32)
    assert int(eta.argmax()) == peak
    assert (eta[1 : peak + 1].diff() > 0).all()
    assert (eta[peak : 33 - k + 1].diff() < 0).all()
    assert not eta[33 - k :].any()
    assert eta.max() < sum_of_absolute_advantage(GroupAdvantage(), 32).max()


def test_combination_lies_between_its_parts_where_all_is_easy():
    combined, one, k = (
        sum_of_absolute_advantage(strategy, 32)
        for strategy in (CombinationAdvantage(4), GroupAdvantage(unbiased=False), PassAtKAdvantage(4))
    )
    assert (combined[24:32] < one[24:32]).all()
    assert (combined[24:32] > k[24:32]).all()
    torch.testing.assert_close(combined[1], one[1] * 31 / 32 + k[1] / 32)


def test_strategies_that_need_more_than_rewards_are_measured_too():
    # A single question does not rank above others: it explores.
    assert torch.equal(
        sum_of_absolute_advantage(EntropyAdaptiveAdvantage(4), 8),
        sum_of_absolute_advantage(PassAtKAdvantage(4), 8),
    )


def test_no_responses_are_refused():
    with pytest.raises(ValueError, match="num_samples"):
        sum_of_absolute_advantage(GroupAdvantage(), 0)


def test_one_response_is_enough_to_be_measured():
    assert sum_of_absolute_advantage(GroupAdvantage("batch", baseline="none", scale="none"), 1).tolist() == [
        0.0,
        1.0,
    ]
