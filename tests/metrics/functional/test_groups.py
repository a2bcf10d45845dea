"""Group metrics against loops over groups."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

from tagrpo.metrics.functional import (
    answer_diversity,
    mean_pairwise_distance,
    uniform_reward_percentage,
    zero_gradient_percentage,
)


def random_groups(seed, size=40):
    rng = np.random.default_rng(seed)
    return rng, torch.tensor(rng.choice([-5, 3, 8, 100], size))


def test_uniform_rewards_are_counted_per_group():
    for seed in range(5):
        rng, group = random_groups(seed, 9)
        rewards = torch.tensor(rng.choice([0.0, 1.0], 9))
        uniform = [len(set(rewards[group == g].tolist())) == 1 for g in group.unique()]
        assert float(uniform_reward_percentage(rewards, group)) == pytest.approx(100 * np.mean(uniform))


def test_zero_gradient_needs_every_advantage_to_be_zero():
    advantages = torch.tensor([0.0, 1e-20, 0.0, 0.0, -1.0])
    group = torch.tensor([1, 1, 2, 2, 3])
    assert float(zero_gradient_percentage(advantages, group)) == pytest.approx(100 / 3)


def test_distance_is_the_mean_over_pairs():
    rng, group = random_groups(1)
    embeddings = torch.tensor(rng.normal(size=(40, 6)))
    expected = []
    for g in group.unique():
        rows = embeddings[group == g].numpy()
        cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in combinations(rows, 2)]
        expected.append(1 - np.mean(cosines))
    np.testing.assert_allclose(mean_pairwise_distance(embeddings, group).numpy(), expected, atol=1e-12)


def test_distance_of_a_single_response_is_undefined():
    assert mean_pairwise_distance(torch.ones(1, 2), torch.tensor([0])).isnan().tolist() == [True]


def test_distance_expects_the_same_whatever_the_size_of_the_pool():
    generator = torch.Generator().manual_seed(0)
    means = []
    for size in (3, 24):
        embeddings = torch.randn(400 * size, 4, generator=generator) + torch.tensor([1.0, 0, 0, 0])
        means.append(float(mean_pairwise_distance(embeddings, torch.arange(400).repeat_interleave(size)).mean()))
    assert abs(means[0] - means[1]) < 0.03


def test_only_distinct_wrong_answers_count():
    answers = ["1", "2", "2", None, "3", "3"]
    correct = torch.tensor([True, False, False, False, False, False])
    assert answer_diversity(answers, correct, torch.tensor([0, 0, 0, 0, 7, 7])).tolist() == [1, 1]
    assert answer_diversity(["1"], torch.tensor([True]), torch.tensor([0])).tolist() == [0]
