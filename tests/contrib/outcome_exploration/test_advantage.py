"""Exploration by final answers: bonuses response by response, as the formulas say."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import pytest
import torch

from tagrpo.contrib.outcome_exploration.advantage import HistoricalExplorationAdvantage
from tagrpo.modules.advantages import GroupAdvantage
from tagrpo.types import History

BASE = GroupAdvantage("question")


def remembered(groups, *counts):
    """The groups, with how often the final answer of each response was given before."""
    nothing = torch.zeros_like(groups.question)
    return replace(groups, history=History(nothing, nothing, torch.tensor(counts)))


@pytest.mark.parametrize("baseline", [0, 0.5, 1])
def test_answers_earn_the_less_the_more_often_the_run_has_seen_them(baseline, pools):
    counts = [0, 1, 2, 4, 9, 100, 0, 3]
    groups = remembered(pools((1, 3), (2, 2)), *counts)
    added = HistoricalExplorationAdvantage(BASE, 0.3, baseline)(groups) - BASE(groups)
    expected = [0.3 * (min(1.0, sqrt(1 / n) if n else 1.0) - baseline) for n in counts]
    assert added.tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("group_by", ["question", "batch"])
def test_the_mean_baseline_is_that_of_the_pool(group_by, pools):
    counts = [0, 4, 16, 100, 0, 9]
    groups = remembered(pools((1, 3), (1, 1)), *counts)
    added = HistoricalExplorationAdvantage(BASE, 2.0, "mean", group_by)(groups) - BASE(groups)
    bonus = [1, 1 / 2, 1 / 4, 1 / 10, 1, 1 / 3]
    means = [1.85 / 4] * 4 + [2 / 3] * 2 if group_by == "question" else [sum(bonus) / 6] * 6
    assert added.tolist() == pytest.approx([2 * (b - m) for b, m in zip(bonus, means, strict=True)], abs=1e-6)


def test_uniform_questions_still_explore(pools):
    groups = remembered(pools((0, 3)), 0, 4, 16)
    assert HistoricalExplorationAdvantage(BASE, 1.0)(groups).tolist() == [0.5, 0.0, -0.25]
    assert HistoricalExplorationAdvantage(BASE, 0.0)(groups).tolist() == [0.0] * 3
    same = remembered(pools((0, 3)), 7, 7, 7)
    assert HistoricalExplorationAdvantage(BASE, 1.0, "mean")(same).tolist() == pytest.approx(
        [0.0] * 3, abs=1e-7
    )


def test_the_coefficient_is_a_tenth_unless_another_is_given(pools):
    groups = remembered(pools((0, 2)), 0, 4)
    assert HistoricalExplorationAdvantage(BASE)(groups).tolist() == pytest.approx([0.05, 0.0])


def test_what_is_lacking_or_impossible_is_refused(pools):
    with pytest.raises(ValueError, match=r"RewardGroups\.history"):
        HistoricalExplorationAdvantage(BASE)(pools((1, 1)))
    with pytest.raises(ValueError, match=r"advantage\.coefficient"):
        HistoricalExplorationAdvantage(BASE, -0.1)
    with pytest.raises(ValueError, match=r"advantage\.group_by"):
        HistoricalExplorationAdvantage(BASE, group_by="rank")
    for baseline in (-0.5, 1.5, "median"):
        with pytest.raises(ValueError, match=r"advantage\.baseline"):
            HistoricalExplorationAdvantage(BASE, baseline=baseline)
