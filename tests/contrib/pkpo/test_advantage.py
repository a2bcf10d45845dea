"""PKPO against sums over all subsets, as the paper writes them."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
import torch

from tagrpo.contrib.pkpo.advantage import PKPOAdvantage


def s(rewards, i, k, members):
    """S(i, k, members) of Eq. 28: the subsets of size k that hold i, their largest reward, over all subsets."""
    subsets = list(combinations(members, k))
    return sum(max(rewards[j] for j in subset) for subset in subsets if i in subset) / len(subsets)


def by_subsets(rewards, i, k, baseline):
    """Eq. 19, 29 and 33, without the closed forms."""
    everyone = range(len(rewards))
    if baseline == "fewer":
        subsets = [subset for subset in combinations(everyone, k) if i in subset]
        gains = [
            max(rewards[j] for j in held) - max((rewards[j] for j in held if j != i), default=0.0)
            for held in subsets
        ]
        return sum(gains) / len(list(combinations(everyone, k)))
    value = s(rewards, i, k, everyone)
    if baseline == "leave_one_out":
        others = [j for j in everyone if j != i]
        value -= sum(s(rewards, j, k, others) for j in others) / len(others)
    return value


@pytest.mark.parametrize("baseline", ["none", "leave_one_out", "fewer"])
@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_closed_forms_are_the_sums_over_all_subsets(baseline, k, pools):
    for n in range(k + (baseline == "leave_one_out"), 8):
        for correct in range(n + 1):
            groups = pools((correct, n - correct))
            rewards = groups.rewards.double().numpy()
            expected = [n * by_subsets(rewards, i, k, baseline) for i in range(n)]
            found = PKPOAdvantage(k, baseline)(replace(groups, rewards=groups.rewards.double()))
            np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rates", [[0.3] * 6, [0.1, 0.1, 0.1, 0.6, 0.6, 0.6], [0.0, 0.0, 0.0, 1.0, 0.5, 0.5]])
@pytest.mark.parametrize("baseline", ["none", "leave_one_out", "fewer"])
def test_the_expected_gradient_is_that_of_the_chance_that_a_group_of_k_holds_a_correct_one(
    baseline, rates, pools
):
    """Over all outcomes of six responses, each with its own success rate p_i, as of a question and a rephrasing.

    With a mean over responses, ∇p_i is weighted by (E[A_i | right] − E[A_i | wrong]) / n.
    """
    k, n = 3, len(rates)
    found = np.zeros(n)
    for outcome in product([False, True], repeat=n):
        groups = pools((0, n))
        correct = torch.tensor(outcome)
        groups = replace(groups, correct=correct, rewards=correct.double())
        advantages = PKPOAdvantage(k, baseline)(groups).numpy()
        for i, advantage in enumerate(advantages):
            chance = np.prod([p if outcome[j] else 1 - p for j, p in enumerate(rates) if j != i])
            found[i] += (1 if outcome[i] else -1) * chance * advantage / n

    def missed(members):
        return np.prod([1 - rates[j] for j in members])

    subsets = list(combinations(range(n), k))
    # ∂/∂p_i of the mean of 1 − ∏(1 − p_j): the product over the other members, of the subsets that hold i.
    expected = [
        sum(missed(set(held) - {i}) for held in subsets if i in held) / len(subsets) for i in range(n)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    if len(set(rates)) == 1:
        np.testing.assert_allclose(found, k * (1 - rates[0]) ** (k - 1) / n, rtol=1e-12)


def test_a_question_and_its_rephrasings_are_one_pool(pools):
    groups = pools((1, 2), (0, 3))
    pooled = replace(groups, question=torch.zeros(6, dtype=torch.long))
    assert PKPOAdvantage(3)(pooled).tolist() == pytest.approx([3, 0, 0, 0, 0, 0])
    assert (
        PKPOAdvantage(4, group_by="prompt")(pooled).tolist() == [0.0] * 6
    )  # each prompt has three responses
    # Two others of five: the correct one is among them in 4 of 10 pairs.
    assert PKPOAdvantage(3, "none")(pooled).tolist() == pytest.approx([3] + [3 * 4 / 10] * 5)


@pytest.mark.parametrize(("baseline", "enough"), [("none", 4), ("fewer", 4), ("leave_one_out", 5)])
def test_pools_too_small_for_an_unbiased_estimate_are_zero(baseline, enough, pools):
    for size in range(1, 6):
        advantages = PKPOAdvantage(4, baseline)(pools((1, size - 1)))
        assert bool(advantages.any()) == (size >= enough)


def test_impossible_options_are_refused():
    for options in ({"k": 0}, {"k": 2, "baseline": "mean"}, {"k": 2, "group_by": "rank"}):
        with pytest.raises(ValueError, match=rf"advantage\.{list(options)[-1]}"):
            PKPOAdvantage(**options)
