"""DGPO against the paper's equations and the authors' trainer, both written anew in numpy."""

from __future__ import annotations

from dataclasses import replace
from math import comb

import numpy as np
import pytest
import torch

from tagrpo.contrib.mathforge.advantage import DifficultyAwareAdvantage
from tagrpo.lab.objectives import expected_weights


def by_equations(rewards, correct, lengths, temperature):
    """Eq. 3 to 6 and 25 for a batch [B, G]; the factor of Eq. 3's sum over valid tokens, as the loss counts all."""
    valid = [row for row in range(len(rewards)) if len(set(rewards[row])) > 1]
    hardness = {row: -correct[row].mean() if correct[row].any() else -1.0 for row in valid}
    total = sum(np.exp(value / temperature) for value in hardness.values())
    found = np.zeros(rewards.shape)
    for row in valid:
        weight = len(valid) * np.exp(hardness[row] / temperature) / total
        deviation = rewards[row] - rewards[row].mean()
        found[row] = weight * deviation / np.abs(deviation).mean() * lengths.sum() / lengths[valid].sum()
    return found


def by_the_trainer(rewards, lengths, temperature):
    """AMAP-ML/MathForge at 83edda0, trl-0.20.0/trl/trainer/grpo_trainer.py, on one process; rewards are verdicts."""
    mean, std, samples = rewards.mean(1), rewards.std(1, ddof=1), rewards.shape[1]
    mixed = ~np.isclose(std, 0)
    advantages = rewards - mean[:, None]
    advantages = samples * advantages / (np.abs(advantages).sum(1, keepdims=True) + 1e-4)
    if mixed.any():
        logits = -np.where(np.isclose(mean, 0), 1.0, mean)[mixed] / temperature
        weights = np.ones(len(rewards))
        weights[mixed] = mixed.sum() * np.exp(logits) / np.exp(logits).sum()
        advantages = advantages * weights[:, None] * lengths.sum() / lengths[mixed].sum()
    return advantages


def batch(seed, shaped):
    """Eight questions of six responses, of every difficulty, right answers and lengths drawn."""
    rng = np.random.default_rng(seed)
    correct = rng.random((8, 6)) < np.linspace(0, 1, 8)[:, None]
    rewards = correct + (rng.integers(-2, 1, (8, 6)) / 4 if shaped else 0.0)
    return rewards.astype(float), correct, rng.integers(1, 40, (8, 6)).astype(float)


def groups_of(pools, rewards, correct, lengths):
    flat = {"rewards": rewards, "correct": correct, "lengths": lengths.astype(int)}
    return replace(
        pools(*[(6, 0)] * 8), **{name: torch.from_numpy(value.ravel()) for name, value in flat.items()}
    )


@pytest.mark.parametrize("temperature", [0.3, 2.0, 1e9])
@pytest.mark.parametrize("shaped", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_advantages_are_those_of_the_equations(pools, temperature, shaped, seed):
    given = batch(seed, shaped)
    found = DifficultyAwareAdvantage(temperature)(groups_of(pools, *given))
    expected = by_equations(*given, temperature)
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(found.view(8, 6).numpy(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
@pytest.mark.parametrize("seed", range(4))
def test_advantages_are_those_of_the_authors_trainer(pools, temperature, seed):
    rewards, correct, lengths = batch(seed, False)
    found = DifficultyAwareAdvantage(temperature, epsilon=1e-4)(groups_of(pools, rewards, correct, lengths))
    np.testing.assert_allclose(
        found.view(8, 6).numpy(), by_the_trainer(rewards, lengths, temperature), atol=1e-6
    )


def test_a_question_in_three_wordings_is_three_pools_or_one(pools):
    groups = pools((1, 3), (2, 2), (0, 4))
    apart = DifficultyAwareAdvantage(group_by="prompt")(
        replace(groups, question=torch.zeros(12, dtype=torch.long))
    )
    torch.testing.assert_close(apart, DifficultyAwareAdvantage()(groups))
    pooled = DifficultyAwareAdvantage()(replace(groups, question=torch.zeros(12, dtype=torch.long)))
    torch.testing.assert_close(pooled[groups.correct], torch.full((3,), 2.0))  # 3 of 12: ¾ / (2 · ¼ · ¾)
    torch.testing.assert_close(pooled[~groups.correct], torch.full((9,), -2 / 3))


def test_without_temperature_every_pool_with_a_signal_has_the_same_magnitude(pools):
    found = DifficultyAwareAdvantage(float("inf"))(pools((1, 7), (4, 4), (7, 1), (8, 0))).view(4, 8)
    torch.testing.assert_close(found.abs().sum(1), torch.tensor([1.0, 1, 1, 0]) * 8 * 4 / 3)
    assert not found[3].any()


def test_pools_without_a_signal_are_zero_alone_and_together(pools):
    assert not DifficultyAwareAdvantage()(pools((8, 0), (0, 8), (1, 0), (0, 1))).any()
    mixed = DifficultyAwareAdvantage()(pools((8, 0), (1, 1)))
    assert mixed.tolist() == pytest.approx([0.0] * 8 + [5.0, -5.0])  # ten tokens for two


@pytest.mark.parametrize("samples", [2, 8])
def test_the_exact_objective_of_a_question_is_a_truncated_log_odds(samples):
    for rate in (0.01, 0.3, 0.5, 0.9):
        found = float(
            expected_weights(DifficultyAwareAdvantage(), torch.tensor([rate], dtype=torch.double), samples)
        )
        assert found == pytest.approx((1 - rate**samples - (1 - rate) ** samples) / (2 * rate * (1 - rate)))


def test_the_exact_weights_of_a_batch_are_sums_over_its_verdicts():
    """Two questions of three responses: what is weighted up at one is weighted down at the other."""
    rates, expected = (0.2, 0.7), np.zeros(2)
    for counts in np.ndindex(4, 4):
        correct = np.arange(3) < np.array(counts)[:, None]
        advantages = by_equations(correct.astype(float), correct, np.ones((2, 3)), 2.0)
        chances = [comb(3, c) * p**c * (1 - p) ** (3 - c) for c, p in zip(counts, rates, strict=True)]
        score = [
            (row * (right / p - (1 - right) / (1 - p))).mean()
            for row, right, p in zip(advantages, correct, rates, strict=True)
        ]
        expected += np.prod(chances) * np.array(score) / 2
    found = expected_weights(DifficultyAwareAdvantage(group_by="prompt"), torch.tensor(rates), 3)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)


def test_impossible_options_are_refused():
    for options, name in (
        ({"temperature": 0.0}, "temperature"),
        ({"group_by": "rank"}, "group_by"),
        ({"epsilon": -1.0}, "epsilon"),
    ):
        with pytest.raises(ValueError, match=rf"advantage\.{name}"):
            DifficultyAwareAdvantage(**options)
