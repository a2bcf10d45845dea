"""What every strategy with a base shares: the base's needs and its average over random choices."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tagrpo.contrib.grpo_lead.advantage import DifficultyWeightedAdvantage
from tagrpo.contrib.outcome_exploration.advantage import HistoricalExplorationAdvantage
from tagrpo.contrib.unlikeliness.advantage import UnlikelinessAdvantage
from tagrpo.lab.objectives import averaged
from tagrpo.modules.advantages import (
    PassAtKAdvantage,
    WithoutEasyAdvantage,
)
from tagrpo.types import AdvantageStrategy, History

NEEDS = ("needs_entropy", "needs_logprobs", "needs_history")
OWN = {
    DifficultyWeightedAdvantage: set(),
    HistoricalExplorationAdvantage: {"needs_history"},
    UnlikelinessAdvantage: {"needs_logprobs"},
    WithoutEasyAdvantage: set(),
}


def build(kind, base):
    return kind(base=base)


class Base(AdvantageStrategy):
    """Three times the rewards, on average twice the rewards."""

    def __init__(self, need=None):
        if need:
            setattr(self, need, True)

    def __call__(self, groups):
        return 3 * groups.rewards

    def expected(self, groups):
        return 2 * groups.rewards


class Twice(AdvantageStrategy):
    def __call__(self, groups):
        return 2 * groups.rewards


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.__name__)
def test_it_needs_what_the_base_needs_besides_its_own(kind):
    for need in (None, *NEEDS):
        strategy = build(kind, Base(need))
        assert {name for name in NEEDS if getattr(strategy, name)} == OWN[kind] | {need} - {None}


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.__name__)
def test_it_reads_rewards_where_its_base_does(kind):
    assert build(kind, Base()).reads_rewards
    if kind is UnlikelinessAdvantage:  # shapes the rewards itself
        with pytest.raises(ValueError, match=r"advantage\.base.*PassAtKAdvantage"):
            kind(PassAtKAdvantage(2))
    else:
        assert not build(kind, PassAtKAdvantage(2)).reads_rewards


@pytest.mark.parametrize(
    "kind", [kind for kind in OWN if kind is not DifficultyWeightedAdvantage], ids=lambda kind: kind.__name__
)
def test_it_changes_the_average_of_its_base(kind, pools):
    groups = replace(
        pools((3, 5)),
        logprob=-torch.arange(8.0),
        lengths=torch.ones(8),
        history=History(*(torch.full((8,), n) for n in (8, 1, 0))),
    )
    strategy = build(kind, Base())
    assert torch.equal(averaged(strategy, groups), build(kind, Twice())(groups))
    assert not torch.equal(averaged(strategy, groups), strategy(groups))


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.__name__)
def test_a_base_that_is_no_strategy_is_refused(kind):
    with pytest.raises(TypeError, match=r"advantage\.base"):
        build(kind, "group")
