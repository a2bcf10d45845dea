"""Holds for every strategy: order and names do not matter, nothing is NaN; with a baseline, no signal is exactly 0."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from copy import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tagrpo.contrib.grpo_lead.advantage import DifficultyWeightedAdvantage
from tagrpo.contrib.negative_reinforcement.advantage import VerdictAdvantage
from tagrpo.contrib.ngrpo.advantage import VirtualSuccessAdvantage
from tagrpo.contrib.outcome_exploration.advantage import HistoricalExplorationAdvantage
from tagrpo.contrib.pkpo.advantage import PKPOAdvantage
from tagrpo.contrib.rs_grpo.advantage import RiskSensitiveAdvantage
from tagrpo.modules import advantages
from tagrpo.modules.advantages import (
    CombinationAdvantage,
    EntropyAdaptiveAdvantage,
    ExceedingPassAtKAdvantage,
    GroupAdvantage,
    PassAtKAdvantage,
    WithoutEasyAdvantage,
)
from tagrpo.types import History, RewardGroups

EXACT = {
    "group": GroupAdvantage(),
    "leave one out": GroupAdvantage(baseline="leave_one_out", scale="none"),
    "batch": GroupAdvantage("batch"),
    "over the mean": GroupAdvantage(scale="mean"),
    "pass@2": PassAtKAdvantage(2),
    "pass@4": PassAtKAdvantage(4),
    "pkpo": PKPOAdvantage(3),
    "risk sensitive": RiskSensitiveAdvantage(2.0),
    "exceeding": ExceedingPassAtKAdvantage(2),
    "combination": CombinationAdvantage(2),
    "adaptive": EntropyAdaptiveAdvantage(2),
    "without easy": WithoutEasyAdvantage(GroupAdvantage()),
    "difficulty": DifficultyWeightedAdvantage(),
}
UNCENTRED = {
    "virtual success": VirtualSuccessAdvantage(),
    "verdict": VerdictAdvantage(0.1),
    "pkpo without baseline": PKPOAdvantage(2, "none"),
    "historical exploration": HistoricalExplorationAdvantage(GroupAdvantage()),
}
SAMPLED = {"bootstrap": PassAtKAdvantage(2, "bootstrap"), "full": PassAtKAdvantage(2, "full")}

rows = st.lists(st.tuples(st.sampled_from([0.0, 0.1, 1.0, 1.1]), st.integers(0, 3)), min_size=1, max_size=24)


def groups_of(rows, names=(0, 1, 2, 3), progress=0.0):
    rewards, question = zip(*rows, strict=True)
    rewards = torch.tensor(rewards)
    names = torch.tensor([names[q] for q in question])
    entropy = torch.tensor([0.3 + 0.1 * q for q in question])  # distinct between questions, so that none tie
    return RewardGroups(
        rewards=rewards,
        correct=rewards >= 1,
        question=names,
        prompt=names,
        entropy=entropy,
        history=History(known := torch.tensor([9 * q for q in question]), known // 4, torch.tensor(question)),
        progress=progress,
    )


@pytest.mark.parametrize("name", EXACT | UNCENTRED | SAMPLED)
def test_it_says_whether_it_reads_the_rewards(name):
    strategy = (EXACT | UNCENTRED | SAMPLED)[name]
    groups = groups_of([row for q in (0, 1) for row in [(1.0, q), (1.0, q), *[(0.0, q)] * 6]])
    shaped = replace(groups, rewards=torch.tensor([1.0, 1.3, 0.0, 0.5, 0.0, 0.0, 0.2, 0.0] * 2))
    assert strategy.reads_rewards == (not torch.equal(strategy(shaped), strategy(groups)))


@pytest.mark.parametrize("name", EXACT | UNCENTRED)
@given(rows=rows, random=st.randoms())
@settings(max_examples=min(30, settings.default.max_examples))
def test_order_of_responses_and_names_of_groups_do_not_matter(name, rows, random):
    order = list(range(len(rows)))
    random.shuffle(order)
    names = random.sample([-5, 0, 12, 7, 10**12], 4)
    strategy = (EXACT | UNCENTRED)[name]
    plain = strategy(groups_of(rows))
    shuffled = strategy(groups_of([rows[row] for row in order], names))
    torch.testing.assert_close(shuffled, plain[order])


@pytest.mark.parametrize("name", EXACT | SAMPLED | UNCENTRED)
@given(rows=rows, progress=st.floats(0, 1))
@settings(max_examples=min(30, settings.default.max_examples))
def test_every_response_gets_a_finite_float32_advantage(name, rows, progress):
    groups = groups_of(rows, progress=progress)
    result = (EXACT | SAMPLED | UNCENTRED)[name](groups)
    assert result.dtype is torch.float32
    assert result.shape == groups.rewards.shape
    assert torch.isfinite(result).all()


@pytest.mark.parametrize("name", EXACT | SAMPLED)
@given(reward=st.floats(-3, 3, width=32), size=st.integers(1, 9))
@settings(max_examples=min(20, settings.default.max_examples))
def test_equal_responses_have_advantages_of_exactly_zero(name, reward, size):
    groups = groups_of([(reward, 0)] * size)
    assert (EXACT | SAMPLED)[name](groups).tolist() == [0.0] * size


@pytest.mark.parametrize("name", EXACT | SAMPLED | UNCENTRED)
def test_no_responses_have_no_advantages(name):
    none = torch.zeros(0, dtype=torch.long)
    groups = RewardGroups(
        rewards=none.float(), correct=none.bool(), question=none, prompt=none, entropy=none.float(),
        history=History(none, none, none),
    )  # fmt: skip
    assert (EXACT | SAMPLED | UNCENTRED)[name](groups).shape == (0,)


@pytest.mark.parametrize("module", [module.name for module in pkgutil.iter_modules(advantages.__path__)])
def test_the_documented_numbers_are_right(module):
    results = doctest.testmod(importlib.import_module(f"{advantages.__name__}.{module}"))
    assert results.attempted
    assert not results.failed


@pytest.mark.parametrize("scale", ["std", "none", "mean"])
@given(
    rewards=st.lists(st.integers(0, 8), min_size=2, max_size=12),
    shift=st.integers(-4, 4),
    factor=st.integers(1, 8),
)
@settings(max_examples=min(30, settings.default.max_examples))
def test_group_advantages_know_no_shift_and_the_scale_that_they_say(scale, rewards, shift, factor):
    def found(values):
        return GroupAdvantage(scale=scale)(groups_of([(float(value), 0) for value in values]))

    plain = found(rewards)
    torch.testing.assert_close(plain.sum(), torch.zeros(()), atol=1e-4, rtol=0)
    if scale != "mean":
        torch.testing.assert_close(found([value + shift for value in rewards]), plain, atol=1e-4, rtol=1e-4)
    scaled = found([factor * value for value in rewards])
    torch.testing.assert_close(scaled, plain * (factor if scale == "none" else 1), atol=1e-4, rtol=1e-3)


POOLED = EXACT.keys() - {"batch", "adaptive", "difficulty", "semantic entropy"}


@pytest.mark.parametrize("name", sorted(POOLED))
@given(rows=rows)
@settings(max_examples=min(30, settings.default.max_examples))
def test_a_question_is_judged_by_its_own_pool_alone(name, rows):
    whole = EXACT[name](groups_of(rows))
    for question in range(4):
        own = [i for i, row in enumerate(rows) if row[1] == question]
        if own:
            torch.testing.assert_close(EXACT[name](groups_of([rows[i] for i in own])), whole[own])


@pytest.mark.parametrize("name", EXACT | SAMPLED | UNCENTRED)
def test_strategies_are_told_apart_by_what_they_are(name):
    strategy = (EXACT | SAMPLED | UNCENTRED)[name]
    of_strategy = {strategy: strategy(groups_of([(1.0, 0)]))}
    assert strategy in of_strategy
    assert strategy != copy(strategy)
