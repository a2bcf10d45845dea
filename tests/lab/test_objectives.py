"""Exact weights against closed forms, enumeration of all reward vectors in numpy, and simulation of the strategies."""

from __future__ import annotations

import sys
from functools import partial
from itertools import combinations, permutations, product
from math import comb, prod
from pathlib import Path

import numpy as np
import pytest
import torch

from tagrpo.contrib.grpo_lead.advantage import DifficultyWeightedAdvantage
from tagrpo.contrib.negative_reinforcement.advantage import VerdictAdvantage
from tagrpo.contrib.ngrpo.advantage import VirtualSuccessAdvantage
from tagrpo.contrib.pkpo.advantage import PKPOAdvantage
from tagrpo.contrib.rs_grpo.advantage import RiskSensitiveAdvantage
from tagrpo.lab.objectives import averaged, count_utility, expected_advantages, expected_weights
from tagrpo.modules.advantages import (
    EntropyAdaptiveAdvantage,
    GroupAdvantage,
    PassAtKAdvantage,
)
from tagrpo.modules.advantages.pass_at_k import group_advantages
from tests.modules.advantages.conftest import pools_of

sys.path.insert(0, str(Path(__file__).parent))

import simulated

RATES = torch.tensor([0.02, 0.3, 0.55, 0.9], dtype=torch.float64)
DETERMINISTIC = simulated.DETERMINISTIC | simulated.OVER_THE_BATCH


MAX_RL = GroupAdvantage("question", scale="mean", epsilon=0.0)


def one(strategy, rate, samples):
    return float(expected_weights(strategy, torch.tensor([rate], dtype=torch.float64), samples))


# ---------------------------------------------------------------------- closed forms


@pytest.mark.parametrize("samples", [1, 2, 7])
def test_without_scale_the_mean_as_baseline_weighs_every_prompt_alike(samples):
    weights = expected_weights(GroupAdvantage("prompt", scale="none"), RATES, samples)
    torch.testing.assert_close(
        weights, torch.full_like(RATES, (samples - 1) / samples / 4), rtol=0, atol=1e-14
    )


@pytest.mark.parametrize("group_by", ["prompt", "question", "batch"])
def test_leaving_one_out_has_no_bias(group_by):
    weights = expected_weights(GroupAdvantage(group_by, baseline="leave_one_out", scale="none"), RATES, 4)
    torch.testing.assert_close(weights, torch.full_like(RATES, 1 / 4), rtol=0, atol=1e-14)


def test_the_mean_of_a_pool_loses_one_response_of_all():
    weights = expected_weights(GroupAdvantage("question", scale="none"), RATES, torch.tensor([2, 3, 5, 1]))
    torch.testing.assert_close(weights, torch.full_like(RATES, (1 - 1 / 11) / 4), rtol=0, atol=1e-14)


@pytest.mark.parametrize("k", [2, 4, 8])
def test_pass_at_k_tends_to_the_gradient_of_pass_at_k_over_its_deviation(k):
    for p in (0.02, 0.1, 0.3):
        fails = (1 - p) ** k
        limit = (1 - p) ** (k - 1) / np.sqrt(
            fails * (1 - fails)
        )  # k (1 − p)^(k−1) is the gradient, over k and σ
        few, many = (one(PassAtKAdvantage(k), p, n) / limit - 1 for n in (256, 1024))
        assert abs(many) < 0.03
        assert abs(many) < 0.4 * abs(few)


@pytest.mark.parametrize("samples", [1, 4, 16])
def test_max_rl_has_its_closed_form_and_tends_to_one_over_p(samples):
    for p in (0.01, 0.2, 0.9):
        # Σ_k ∇pass@k / k up to k = n − 1, weights (1 − p)^(k−1); without the baseline up to n
        expected = sum((1 - p) ** (k - 1) for k in range(1, samples))
        assert one(MAX_RL, p, samples) == pytest.approx(expected, rel=1e-12)
        plain = GroupAdvantage("question", baseline="none", scale="mean", epsilon=0.0)
        assert one(plain, p, samples) == pytest.approx(expected + (1 - p) ** (samples - 1), rel=1e-12)
    assert one(MAX_RL, 0.2, 512) == pytest.approx(1 / 0.2, rel=1e-6)


@pytest.mark.parametrize("baseline", ["none", "leave_one_out", "fewer"])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_pkpo_has_exactly_the_gradient_of_pass_at_k(k, baseline):
    for p in (0.02, 0.3, 0.9):
        for samples in (5, 8):
            found = one(PKPOAdvantage(k, baseline), p, samples)
            assert found == pytest.approx(k * (1 - p) ** (k - 1), rel=1e-12)


def test_pkpo_over_rephrasings_is_the_gradient_of_the_mean_pass_at_k_of_all_subsets():
    rates, samples, k = RATES.clone().requires_grad_(), torch.tensor([2, 4, 1, 3]), 3
    failing = [1 - p for p in rates.repeat_interleave(samples)]
    subsets = list(combinations(failing, k))
    expected = torch.autograd.grad(sum(1 - prod(subset) for subset in subsets) / len(subsets), rates)[0]
    for baseline in ("none", "leave_one_out", "fewer"):
        found = expected_weights(PKPOAdvantage(k, baseline), RATES, samples) * 4 * samples / 10
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("beta", [-1.0, 2.0, 8.0])
def test_rs_grpo_tends_to_the_gradient_of_its_utility(beta):
    # d/dp of ln(1 + p (e^β − 1)) / β
    for p in (0.1, 0.5, 0.9):
        limit = np.expm1(beta) / (beta * (1 + p * np.expm1(beta)))
        few, many = (one(RiskSensitiveAdvantage(beta), p, n) / limit - 1 for n in (64, 512))
        assert abs(many) < 0.03
        assert abs(many) < 0.2 * abs(few)


@pytest.mark.parametrize(("correct", "wrong"), [(1.0, 0.0), (0.0, -1.0), (0.1, -1.0)])
def test_verdicts_without_a_baseline_weigh_every_prompt_alike(correct, wrong):
    # Positive and negative samples alone have one expectation, Σ ∇p: the score of a response is 0 on average.
    weights = expected_weights(VerdictAdvantage(correct, wrong), RATES, torch.tensor([2, 3, 5, 1]))
    torch.testing.assert_close(weights, torch.full_like(RATES, (correct - wrong) / 4), rtol=0, atol=1e-14)


def test_two_responses_with_their_deviation_by_hand():
    # Only one right and one wrong count: (½, −½) over √½ + ε. Given one right, the other is wrong with 1 − p.
    a = 0.5 / (np.sqrt(0.5) + 1e-6)
    given = expected_advantages(GroupAdvantage(), torch.tensor([0.3], dtype=torch.float64), 2)
    assert float(given.correct) == pytest.approx(0.7 * a, rel=1e-14)
    assert float(given.wrong) == pytest.approx(-0.3 * a, rel=1e-14)


def test_a_pool_of_equal_prompts_is_one_prompt_with_all_its_responses():
    pooled = expected_weights(GroupAdvantage("question"), torch.full((8,), 0.1, dtype=torch.float64), 8)
    assert float(pooled.sum()) == pytest.approx(one(GroupAdvantage(), 0.1, 64), rel=1e-12)
    assert float(pooled.max() - pooled.min()) < 1e-15


# ---------------------------------------------------------------------- enumeration


def grpo(rewards, pools, epsilon=1e-6):
    """[R] numpy: (r − mean) / (std with Bessel's correction + ε) over each pool, 0 where all are equal."""
    advantages = np.zeros(len(rewards))
    for pool in np.unique(pools):
        rows = pools == pool
        if len(set(rewards[rows])) > 1:
            centred = rewards[rows] - rewards[rows].mean()
            advantages[rows] = centred / (rewards[rows].std(ddof=1) + epsilon)
    return advantages


def max_rl(rewards, pools):
    """[R] numpy: (r − mean) / mean over each pool, 0 where none is right."""
    advantages = np.zeros(len(rewards))
    for pool in np.unique(pools):
        rows = pools == pool
        if rewards[rows].any():
            advantages[rows] = rewards[rows] / rewards[rows].mean() - 1
    return advantages


def pkpo(rewards, pools, k=2):
    """[R] numpy: n · s_i of Eq. 33, the share of the groups of k in which i alone is right."""
    advantages = np.zeros(len(rewards))
    for pool in np.unique(pools):
        rows = pools == pool
        n, c = int(rows.sum()), int(rewards[rows].sum())
        advantages[rows] = rewards[rows] * n * comb(n - c, k - 1) / comb(n, k)
    return advantages


def ngrpo(rewards, pools, epsilon=1e-6):
    """[R] numpy: GRPO over each pool and one correct response that nobody sampled."""
    advantages = np.zeros(len(rewards))
    for pool in np.unique(pools):
        extended = np.append(rewards[pools == pool], 1.0)
        advantages[pools == pool] = ((extended - extended.mean()) / (extended.std(ddof=1) + epsilon))[:-1]
    return advantages


def rs_grpo(rewards, pools, beta=2.0):
    """[R] numpy: (e^{βr} / mean − 1) / β over each pool."""
    advantages = np.zeros(len(rewards))
    for pool in np.unique(pools):
        rows = pools == pool
        advantages[rows] = (np.exp(beta * rewards[rows]) / np.exp(beta * rewards[rows]).mean() - 1) / beta
    return advantages


FORMULAS = {
    "grpo": (grpo, GroupAdvantage),
    "max_rl": (max_rl, partial(GroupAdvantage, scale="mean", epsilon=0.0)),
    "pkpo": (pkpo, partial(PKPOAdvantage, 2)),
    "ngrpo": (ngrpo, VirtualSuccessAdvantage),
    "rs_grpo": (rs_grpo, partial(RiskSensitiveAdvantage, 2.0)),
}


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_of_the_papers_agree_over_all_reward_vectors(name, pooled):
    formula, strategy = FORMULAS[name]
    rates, samples = np.array([0.05, 0.5, 0.8]), np.array([4, 2, 4])
    prompt = np.repeat(np.arange(3), samples)
    p, expected = rates[prompt], np.zeros(3)
    for vector in product((0.0, 1.0), repeat=len(prompt)):
        rewards = np.array(vector)
        advantages = formula(rewards, np.zeros(10) if pooled else prompt)
        probability = np.prod(np.where(rewards == 1, p, 1 - p))
        score = np.where(rewards == 1, 1 / p, -1 / (1 - p))  # E[A · score] = E[A | correct] − E[A | wrong]
        expected += probability * np.bincount(prompt, advantages * score) / samples / 3
    strategy = strategy(group_by="question" if pooled else "prompt")
    found = expected_weights(strategy, torch.from_numpy(rates), torch.from_numpy(samples))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_prompts_that_are_nearly_alike_are_weighed_as_prompts_that_are(name):
    # Equal prompts are enumerated once for all orders of their counts, nearly equal ones one by one.
    alike = torch.tensor([0.2, 0.6, 0.2, 0.6, 0.2], dtype=torch.float64)
    nearly = alike + 1e-13 * torch.arange(5)
    weights = [expected_weights(DETERMINISTIC[name], rates, 2) for rates in (alike, nearly)]
    torch.testing.assert_close(*weights, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_rates_of_zero_and_one_are_limits(name):
    ends = torch.tensor([0.0, 1.0, 0.3], dtype=torch.float64)
    near = torch.tensor([1e-9, 1 - 1e-9, 0.3], dtype=torch.float64)
    weights = [expected_weights(DETERMINISTIC[name], rates, 3) for rates in (ends, near)]
    torch.testing.assert_close(*weights, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    "name", ["TA-GRPO", "population std", "RLOO", "pass@3", "exceeding", "combination", "difficulty"]
)
def test_the_weights_of_a_pool_are_the_gradient_of_a_utility_of_its_count(name):
    samples = torch.tensor([2, 4, 1, 3])
    rates = RATES.clone().requires_grad_()
    count = torch.ones(
        1, dtype=torch.float64
    )  # distribution of the number of correct responses, one after the other
    for p in rates.repeat_interleave(samples):
        nothing = torch.zeros(1, dtype=torch.float64)
        count = torch.cat([count, nothing]) * (1 - p) + torch.cat([nothing, count]) * p
    worth = (count @ count_utility(DETERMINISTIC[name], 10)) / 10
    expected = torch.autograd.grad(worth, rates)[0]
    found = expected_weights(DETERMINISTIC[name], RATES, samples) * 4 * samples / 10
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)


# ---------------------------------------------------------------------- averages over random groups


@pytest.mark.parametrize(("n", "k", "num_groups"), [(4, 2, 3), (5, 3, 3), (3, 1, 4), (5, 2, 1), (6, 4, 2)])
def test_the_expectation_of_bootstrap_is_the_mean_over_all_draws_of_groups(n, k, num_groups):
    draws = list(product(combinations(range(n), k), repeat=num_groups))
    strategy = PassAtKAdvantage(k, "bootstrap", num_groups=num_groups, epsilon=1e-3)
    for c in range(n + 1):
        groups = pools_of((c, n - c), rewards=(torch.arange(n) < c).double())
        sums = sum(group_advantages(groups.correct, torch.tensor(draw), 1e-3) for draw in draws)
        expected = sums / len(draws) * n / (k * num_groups)
        torch.testing.assert_close(averaged(strategy, groups), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("n", "k"), [(4, 2), (5, 2), (6, 2), (6, 3), (6, 4), (3, 1)])
def test_the_expectation_of_full_is_the_mean_over_all_partitions(n, k):
    strategy, count = PassAtKAdvantage(k, "full", epsilon=1e-3), n // k * k
    orders = [torch.tensor(order[:count]).view(-1, k) for order in permutations(range(n))]
    for c in range(n + 1):
        groups = pools_of((c, n - c), rewards=(torch.arange(n) < c).double())
        expected = sum(group_advantages(groups.correct, members, 1e-3) for members in orders) / len(orders)
        torch.testing.assert_close(averaged(strategy, groups), expected, rtol=0, atol=1e-12)


def test_the_expectation_of_many_bootstrap_groups_is_the_analytic_estimator():
    counts = [(1, 15), (5, 3), (0, 4), (2, 1)]
    many = averaged(PassAtKAdvantage(3, "bootstrap", num_groups=20_000), pools_of(*counts))
    torch.testing.assert_close(many, PassAtKAdvantage(3)(pools_of(*counts)), rtol=1e-3, atol=1e-6)


def test_the_analytic_estimator_is_its_own_expectation():
    groups = pools_of((1, 6), (4, 2))
    assert torch.equal(averaged(PassAtKAdvantage(2), groups), PassAtKAdvantage(2)(groups))


# ---------------------------------------------------------------------- all verdicts


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_weights_are_those_of_all_vectors_of_verdicts(name):
    found = expected_weights(DETERMINISTIC[name], simulated.pools(1)[0], simulated.SAMPLES)
    torch.testing.assert_close(found, simulated.enumerated(name), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", simulated.RANDOM)
def test_simulated_random_groups_agree_with_their_expectation(name):
    assert simulated.deviations(name, 2_000, count=3).abs().max() < 4


# ---------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        (EntropyAdaptiveAdvantage(2), "EntropyAdaptiveAdvantage needs more"),
        (
            DifficultyWeightedAdvantage(base=EntropyAdaptiveAdvantage(2)),
            "DifficultyWeightedAdvantage needs more",
        ),
        (
            DifficultyWeightedAdvantage(base=PassAtKAdvantage(2, "bootstrap")),
            "DifficultyWeighted.* random choices",
        ),
    ],
)
def test_strategies_that_cannot_be_summed_are_refused_by_name(strategy, name):
    with pytest.raises(ValueError, match=name):
        expected_weights(strategy, RATES, 4)


def test_what_would_take_forever_is_refused_and_interchangeable_prompts_are_not():
    with pytest.raises(ValueError, match="17,850,625 configurations of 256 responses.*interchangeable"):
        expected_weights(GroupAdvantage(), RATES, 64)
    assert expected_weights(GroupAdvantage(), torch.tensor([0.1, 0.4, 0.4, 0.4]), 16).shape == (4,)


@pytest.mark.parametrize(
    ("success", "samples", "message"),
    [
        (torch.tensor([0.5, 1.1]), 4, "rates between 0 and 1"),
        (torch.tensor([[0.5]]), 4, "rates between 0 and 1"),
        (torch.tensor([]), 4, "rates between 0 and 1"),
        (torch.tensor([torch.nan]), 4, "rates between 0 and 1"),
        (torch.tensor([0.5, 0.5]), 0, "whole number from 1"),
        (torch.tensor([0.5, 0.5]), 2.5, "whole number from 1"),
        (torch.tensor([0.5, 0.5]), torch.tensor([1, 2, 3]), "whole number from 1, or 2 of them"),
    ],
)
def test_wrong_rates_and_samples_are_refused(success, samples, message):
    with pytest.raises(ValueError, match=message):
        expected_weights(GroupAdvantage(), success, samples)


# ---------------------------------------------------------------------- figures
