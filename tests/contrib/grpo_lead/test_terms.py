"""GRPO-LEAD's reward terms against their formulas in plain Python."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_module
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st

from tagrpo.contrib.grpo_lead.advantage import DifficultyWeightedAdvantage
from tagrpo.contrib.grpo_lead.terms import LengthReward, length_reward
from tagrpo.types import RewardGroups


@cache
def composed(*overrides):
    with initialize_config_module("tagrpo.configs", version_base="1.3"):
        return compose("train", list(overrides))


def with_lengths(batch, lengths):
    ids = [torch.arange(length) for length in lengths]
    return replace(batch.rollouts, token_ids=ids)


def reward_groups(rollouts, rewards):
    return RewardGroups(
        rewards=rewards, correct=rollouts.correct, question=rollouts.question, prompt=rollouts.prompt
    )


def lead_rewards(lengths, correct):
    """The paper's reward for one group, in numpy."""
    lengths, correct = np.array(lengths, dtype=float), np.array(correct)
    mean = lengths[correct].mean() if correct.any() else 0.0
    spread = lengths[correct].std(ddof=1) if correct.sum() > 1 else 1.0
    return np.where(correct, np.exp(-0.05 * (lengths - mean) / (spread + 1e-6)), -1.0)


def test_the_length_reward_is_the_papers_and_each_pool_has_its_own_mean_and_spread():
    generator = np.random.default_rng(0)
    group = generator.integers(0, 5, 60)
    lengths = generator.integers(1, 3000, 60)
    correct = generator.random(60) < 0.4
    values = length_reward(torch.tensor(lengths), torch.tensor(correct), torch.tensor(group))
    for pool in range(5):
        rows = group == pool
        np.testing.assert_allclose(
            values.numpy()[rows], lead_rewards(lengths[rows], correct[rows]), rtol=1e-6
        )


@pytest.mark.parametrize(
    ("lengths", "correct", "expected"),
    [
        ([5, 9], [True, False], [1.0, -1.0]),  # a single correct response
        ([7, 7, 7], [True, True, False], [1.0, 1.0, -1.0]),  # correct ones of equal length
        ([5, 9], [False, False], [-1.0, -1.0]),
        # 10 and 20: mean 15, spread 5·√2, z = ∓1/√2.
        ([10, 20], [True, True], [math.exp(0.05 / math.sqrt(2)), math.exp(-0.05 / math.sqrt(2))]),
    ],
)
def test_degenerate_groups_of_the_length_reward(lengths, correct, expected):
    group = torch.zeros(len(lengths), dtype=torch.long)
    values = length_reward(torch.tensor(lengths), torch.tensor(correct), group)
    assert values.tolist() == pytest.approx(expected, abs=1e-6)


def test_the_term_takes_the_verdicts_place(make_batch):
    batch = make_batch([[[1.0, 0.0, 1.0], [1.0, 1.0]]])
    rollouts = with_lengths(batch, [10, 5, 20, 4, 8])
    correct = rollouts.correct
    for pools, group_by in (([range(5)], "question"), ([range(3), range(3, 5)], "prompt")):
        term = LengthReward(group_by=group_by)(rollouts, batch.groups)
        expected = torch.zeros(5)
        for rows in map(list, pools):
            expected[rows] = torch.tensor(lead_rewards(rollouts.lengths[rows], correct[rows])).float()
        torch.testing.assert_close(correct.float() + term, expected)
    with pytest.raises(ValueError, match="group_by"):
        LengthReward(group_by="batch")


def test_grpo_lead_from_lengths_to_advantages(make_batch):
    cfg = composed("experiment=grpo_lead")
    strategy, term = instantiate(cfg.advantage), instantiate(cfg.rollout.reward_terms.length)
    assert type(strategy) is DifficultyWeightedAdvantage
    assert (cfg.loss.kl_coef, cfg.data.num_rephrasings, cfg.data.samples_per_prompt) == (0, 0, 8)
    batch = make_batch([[[1.0, 0.0, 1.0, 0.0]], [[1.0, 1.0, 1.0, 0.0]], [[0.0, 0.0, 0.0, 0.0]]])
    lengths = [12, 40, 30, 11, 5, 6, 9, 7, 3, 4, 5, 6]
    rollouts = with_lengths(batch, lengths)
    rewards = rollouts.correct.float() + term(rollouts, batch.groups)
    advantages = strategy(reward_groups(rollouts, rewards)).numpy()
    for row in range(3):
        rows = slice(4 * row, 4 * row + 4)
        correct = rollouts.correct[rows].numpy()
        values = lead_rewards(lengths[rows], correct)
        normal = (values - values.mean()) / (values.std(ddof=1) + 1e-6)
        logistic = [0.4 + 1.1 / (1 + math.exp(10 * (x - 0.75))) for x in (correct.mean(), 1 - correct.mean())]
        expected = np.where(normal > 0, normal * logistic[0], normal * logistic[1])
        np.testing.assert_allclose(advantages[rows], expected, rtol=1e-4, atol=1e-6)
    # The shorter of two correct responses gains more, both lose to nothing wrong.
    assert advantages[0] > advantages[2] > 0 > advantages[1]


@given(
    st.lists(st.tuples(st.integers(1, 50), st.booleans(), st.integers(0, 2)), min_size=1, max_size=9),
    st.integers(2, 9),
)
def test_length_rewards_order_correct_responses_by_length_and_know_no_unit(rows, factor):
    lengths, correct, group = map(torch.tensor, zip(*rows, strict=True))
    rewards = length_reward(lengths, correct, group)
    assert (rewards[~correct] == -1).all()
    for i, j in product(correct.nonzero()[:, 0].tolist(), repeat=2):
        if group[i] == group[j] and lengths[i] < lengths[j]:
            assert rewards[i] > rewards[j] > 0
    torch.testing.assert_close(length_reward(factor * lengths, correct, group), rewards)
