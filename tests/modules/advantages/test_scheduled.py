"""When one strategy follows another."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tagrpo.modules.advantages import (
    EntropyAdaptiveAdvantage,
    GroupAdvantage,
    PassAtKAdvantage,
    ScheduledAdvantage,
)


def test_the_strategy_changes_at_the_fraction_of_training(pools):
    first, then = PassAtKAdvantage(4), GroupAdvantage()
    strategy = ScheduledAdvantage(first, then, switch=0.25)
    for progress, expected in ((0.0, first), (0.24, first), (0.25, then), (1.0, then)):
        groups = replace(pools((2, 6)), progress=progress)
        assert torch.equal(strategy(groups), expected(groups))
    assert not torch.equal(first(groups), then(groups))


def test_entropy_is_asked_for_when_either_part_needs_it():
    plain, adaptive = GroupAdvantage(), EntropyAdaptiveAdvantage(2)
    assert not ScheduledAdvantage(plain, plain).needs_entropy
    assert ScheduledAdvantage(adaptive, plain).needs_entropy
    assert ScheduledAdvantage(plain, adaptive).needs_entropy


def test_impossible_options_are_refused():
    with pytest.raises(ValueError, match="switch"):
        ScheduledAdvantage(GroupAdvantage(), GroupAdvantage(), switch=1.1)
