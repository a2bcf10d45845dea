"""Eq. 17 by hand."""

from __future__ import annotations

import math

import pytest
import torch

from notebooks.eta import sum_of_absolute_advantage
from tagrpo.modules.advantages import ExceedingPassAtKAdvantage, PassAtKAdvantage


def test_advantages_are_scaled_by_the_number_of_correct_responses(pools):
    groups = pools((1, 7), (2, 6), (0, 8), (8, 0))
    factor = torch.tensor([4 / (10 * math.log(1.5)), 4 / (10 * math.log(2.5)), 0.0, 0.0]).repeat_interleave(8)
    torch.testing.assert_close(ExceedingPassAtKAdvantage(4)(groups), factor * PassAtKAdvantage(4)(groups))


@pytest.mark.parametrize("k", [1, 4, 8])
def test_the_sum_peaks_at_one_correct_response(k):
    # arXiv 2508.10751, §4.2.1: "the peak … is shifted forward to the position where the correctness is 1/32".
    assert int(sum_of_absolute_advantage(ExceedingPassAtKAdvantage(k), 32).argmax()) == 1


def test_impossible_options_are_refused():
    with pytest.raises(ValueError, match=r"advantage\.k"):
        ExceedingPassAtKAdvantage(0)
