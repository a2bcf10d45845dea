"""Exploration by final answers: bonuses and penalties response by response, as the formulas say."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import pytest
import torch

from tagrpo.contrib.outcome_exploration.advantage import BatchExplorationAdvantage, HistoricalExplorationAdvantage
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
    assert HistoricalExplorationAdvantage(BASE, 1.0, "mean")(same).tolist() == pytest.approx([0.0] * 3, abs=1e-7)


def test_the_batch_penalises_every_pair_of_equal_answers_of_a_pool(pools):
    answers = ["3", "3", "8", None, None, "3", "3", "8"]
    groups = replace(pools((2, 3), (1, 2)), answers=answers)
    for group_by, pool in (("question", [0] * 5 + [1] * 3), ("batch", [0] * 8)):
        found = BatchExplorationAdvantage(BASE, 0.4, group_by)(groups) - BASE(groups)
        expected = []
        for i, answer in enumerate(answers):
            members = [j for j in range(8) if pool[j] == pool[i]]
            expected.append(-0.4 * sum(j != i and answers[j] == answer for j in members) / len(members))
        assert found.tolist() == pytest.approx(expected, abs=1e-6)
    alone = replace(pools((1, 0)), answers=["3"])
    assert BatchExplorationAdvantage(BASE, 1.0)(alone).tolist() == [0.0]


def test_a_question_and_its_rephrasings_are_one_pool(pools):
    groups = replace(pools((0, 4)), prompt=torch.tensor([0, 0, 1, 1]), answers=["1", "2", "1", "2"])
    assert BatchExplorationAdvantage(BASE, 1.0)(groups).tolist() == [-0.25] * 4
    assert BatchExplorationAdvantage(BASE, 1.0, "prompt")(groups).tolist() == [0.0] * 4


def test_the_coefficient_is_a_tenth_unless_another_is_given(pools):
    groups = replace(remembered(pools((0, 2)), 0, 4), answers=["3", "3"])
    assert HistoricalExplorationAdvantage(BASE)(groups).tolist() == pytest.approx([0.05, 0.0])
    assert BatchExplorationAdvantage(BASE)(groups).tolist() == pytest.approx([-0.05, -0.05])


def test_what_is_lacking_or_impossible_is_refused(pools):
    with pytest.raises(ValueError, match=r"RewardGroups\.history"):
        HistoricalExplorationAdvantage(BASE)(pools((1, 1)))
    with pytest.raises(ValueError, match=r"RewardGroups\.answers"):
        BatchExplorationAdvantage(BASE)(pools((1, 1)))
    for strategy in (HistoricalExplorationAdvantage, BatchExplorationAdvantage):
        with pytest.raises(ValueError, match=r"advantage\.coefficient"):
            strategy(BASE, -0.1)
        with pytest.raises(ValueError, match=r"advantage\.group_by"):
            strategy(BASE, group_by="rank")
    for baseline in (-0.5, 1.5, "median"):
        with pytest.raises(ValueError, match=r"advantage\.baseline"):
            HistoricalExplorationAdvantage(BASE, baseline=baseline)
