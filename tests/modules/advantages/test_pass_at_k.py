"""Pass@k advantages against enumeration of all groups."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import combinations
from math import comb, sqrt

import numpy as np
import pytest
import torch

from tagrpo.lab.objectives import averaged
from tagrpo.modules.advantages import GroupAdvantage, PassAtKAdvantage
from tagrpo.modules.advantages.pass_at_k import analytic_advantages, group_advantages


def by_enumeration(n, c, k, epsilon=0.0):
    """[n] mean advantage of the groups that each response is in, over all C(n, k) groups; the first c are correct."""
    members = list(combinations(range(n), k))
    rewards = np.array([float(min(group) < c) for group in members])
    if rewards.std() == 0:
        return np.zeros(n)
    values = (rewards - rewards.mean()) / (rewards.std() + epsilon)
    return np.array([values[[row in group for group in members]].mean() for row in range(n)])


@pytest.mark.parametrize("n", range(1, 11))
def test_the_closed_form_is_the_mean_over_all_groups(n, pools):
    for k in range(1, n + 1):
        for c in range(n + 1):
            advantages = PassAtKAdvantage(k, epsilon=1e-6)(pools((c, n - c)))
            expected = by_enumeration(n, c, k, epsilon=1e-6)
            np.testing.assert_allclose(advantages.numpy(), expected, atol=1e-6, err_msg=f"{n=} {c=} {k=}")


@pytest.mark.parametrize("epsilon", [0.0, 1e-6])
@pytest.mark.parametrize("n", [32, 64, 128])
def test_the_closed_form_is_exact_where_failing_groups_are_rare(n, epsilon):
    # Eq. 11-15 in rational numbers. The mean is one within 1e-16 long before the last failing group is gone.
    for k in (1, 2, 8, n // 4, n // 2):
        c = torch.arange(n + 1)
        right, wrong = analytic_advantages(torch.full((n + 1,), n), c, k, epsilon)
        for correct in range(1, n - k + 1):
            failing = Fraction(comb(n - correct, k), comb(n, k))
            alone = Fraction(comb(n - correct - 1, k - 1), comb(n - 1, k - 1))
            std = sqrt(failing * (1 - failing)) + epsilon
            assert float(right[correct]) == pytest.approx(float(failing) / std, rel=1e-12, abs=0)
            assert float(wrong[correct]) == pytest.approx(float(failing - alone) / std, rel=1e-12, abs=0)
        without_signal = (c == 0) | (n - c < k)
        assert not right[without_signal].any()
        assert not wrong[without_signal].any()


def test_a_share_of_failing_groups_below_the_smallest_float_is_none():
    # 1 / C(2048, 1024) is about 1e-615.
    right, wrong = analytic_advantages(torch.tensor([2048]), torch.tensor([1024]), 1024, 0.0)
    assert (right.item(), wrong.item()) == (0.0, 0.0)


def test_pools_of_different_sizes_do_not_disturb_each_other(pools):
    counts = [(1, 4), (0, 3), (2, 0), (3, 7), (1, 0), (2, 2)]
    expected = np.concatenate([by_enumeration(c + w, c, min(3, c + w)) for c, w in counts])
    np.testing.assert_allclose(PassAtKAdvantage(3, epsilon=0.0)(pools(*counts)).numpy(), expected, atol=1e-6)


def test_k_of_one_is_grpo_with_the_population_standard_deviation(pools):
    groups = pools((3, 5), (1, 7), (8, 0))
    expected = GroupAdvantage(unbiased=False, epsilon=1e-3)(groups)
    torch.testing.assert_close(PassAtKAdvantage(1, epsilon=1e-3)(groups), expected)


@pytest.mark.parametrize("estimator", ["analytic", "bootstrap", "full"])
@pytest.mark.parametrize(("c", "w"), [(0, 8), (8, 0), (6, 2), (1, 0), (0, 1), (1, 2), (2, 1), (1, 1)])
def test_pools_without_signal_are_exactly_zero(estimator, c, w, pools):
    # All wrong, fewer than k = 3 wrong, or no more responses than k.
    assert PassAtKAdvantage(3, estimator)(pools((c, w))).tolist() == [0.0] * (c + w)


def test_shaped_rewards_do_not_count(pools):
    groups = pools((2, 6))
    shaped = replace(groups, rewards=torch.linspace(-1, 2, 8))
    assert torch.equal(PassAtKAdvantage(4)(groups), PassAtKAdvantage(4)(shaped))


@pytest.mark.parametrize(("c", "w", "k"), [(1, 7, 4), (3, 9, 2), (2, 6, 4)])
def test_bootstrap_converges_to_the_closed_form(c, w, k, pools):
    groups = pools((c, w))
    exact = PassAtKAdvantage(k, epsilon=0.0)(groups)
    errors = [
        (PassAtKAdvantage(k, "bootstrap", num_groups=count, epsilon=0.0)(groups) - exact).abs().max()
        for count in (200, 20_000)
    ]
    # The error falls with the root of the number of groups: tenfold here.
    assert errors[1] < 0.05
    assert errors[1] < errors[0] / 3


def test_bootstrap_draws_different_responses_into_a_group(pools):
    # With k = n − 1 of which one is correct, a group fails only if it leaves that one out.
    groups = pools((1, 3))
    advantages = PassAtKAdvantage(3, "bootstrap", num_groups=5000, epsilon=0.0)(groups)
    np.testing.assert_allclose(advantages.numpy(), by_enumeration(4, 1, 3), atol=0.1)


def test_full_sampling_by_hand():
    correct = torch.tensor([False, True, False, False, False, True, False])
    members = torch.tensor(
        [[0, 1], [2, 3], [4, 5]]
    )  # rewards 1, 0, 1: mean 2/3, σ = √2/3; response 6 is left over
    expected = [2**-0.5] * 2 + [-(2**0.5)] * 2 + [2**-0.5] * 2 + [0.0]
    assert group_advantages(correct, members, 0.0).tolist() == pytest.approx(expected)


def test_full_sampling_shares_an_advantage_within_disjoint_groups(pools):
    for seed in range(20):
        advantages = PassAtKAdvantage(2, "full", epsilon=0.0, seed=seed)(pools((1, 4)))
        # Two groups and one response left over: the group with the correct response gains what the other loses.
        expected = [0, 1, 1, -1, -1] if advantages[0] > 0 else [0, 0, 0, 0, 0]
        assert sorted(advantages.tolist()) == pytest.approx(sorted(expected))


@pytest.mark.parametrize("estimator", ["bootstrap", "full"])
def test_sampling_depends_on_seed_and_progress_alone(estimator, pools):
    groups = pools((4, 28), (9, 23))
    strategy = PassAtKAdvantage(4, estimator, seed=1)
    state = torch.get_rng_state()
    first = strategy(groups)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(strategy(groups), first)
    assert not torch.equal(strategy(replace(groups, progress=0.01)), first)
    assert not torch.equal(PassAtKAdvantage(4, estimator, seed=2)(groups), first)


def test_pools_follow_group_by(pools):
    groups = replace(pools((1, 7)), prompt=torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]))
    np.testing.assert_allclose(
        PassAtKAdvantage(2, group_by="prompt", epsilon=0.0)(groups).numpy(),
        np.concatenate([by_enumeration(4, 1, 2), np.zeros(4)]),
        atol=1e-6,
    )
    np.testing.assert_allclose(
        PassAtKAdvantage(2, group_by="batch", epsilon=0.0)(groups).numpy(), by_enumeration(8, 1, 2), atol=1e-6
    )


def test_impossible_options_are_refused():
    for options, name in (
        ({"k": 0}, "k"),
        ({"k": 2, "estimator": "exact"}, "estimator"),
        ({"k": 2, "group_by": "rank"}, "group_by"),
        ({"k": 2, "epsilon": -1.0}, "epsilon"),
        ({"k": 2, "num_groups": 8}, "num_groups"),
        ({"k": 2, "num_groups": 0, "estimator": "bootstrap"}, "num_groups"),
    ):
        with pytest.raises(ValueError, match=name):
            PassAtKAdvantage(**options)


@pytest.mark.parametrize("estimator", ["analytic", "bootstrap", "full"])
def test_advantages_have_the_precision_of_the_rewards(estimator, pools):
    groups = pools((1, 6), (4, 2))
    strategy = PassAtKAdvantage(2, estimator)
    exact = replace(groups, rewards=groups.rewards.double())
    for found in (strategy, partial(averaged, strategy)):
        assert found(groups).dtype is torch.float32
        assert found(exact).dtype is torch.float64
        assert torch.equal(found(exact).float(), found(groups))


@pytest.mark.parametrize(("estimator", "num_groups"), [("bootstrap", None), ("bootstrap", 3), ("full", None)])
@pytest.mark.parametrize("seed", [7, 2**63 - 1])
def test_the_draws_are_those_of_one_generator_over_the_pools(estimator, num_groups, seed, pools):
    """Pools of no more than k responses draw nothing; whoever resumes draws the same groups."""
    counts, k, progress = ((1, 2), (2, 7), (1, 1), (3, 5)), 3, 0.3
    generator = torch.Generator().manual_seed((seed + round(progress * 2**40)) % 2**63)
    expected = []
    for c, w in counts:
        n, total = c + w, np.zeros(c + w)
        if n > k:
            if estimator == "full":
                order = torch.randperm(n, generator=generator).tolist()
                drawn = [order[i * k : (i + 1) * k] for i in range(n // k)]
            else:
                scores = torch.rand(num_groups or n, n, generator=generator).tolist()
                drawn = [sorted(range(n), key=row.__getitem__)[:k] for row in scores]
            rewards = np.array([float(min(group) < c) for group in drawn])
            for group, reward in zip(drawn, rewards, strict=True):
                if rewards.std():
                    total[group] += (reward - rewards.mean()) / (rewards.std() + 1e-6)
            total *= 1 if estimator == "full" else n / (k * len(drawn))
        expected += total.tolist()
    strategy = PassAtKAdvantage(k, estimator, num_groups=num_groups, seed=seed)
    found = strategy(
        replace(pools(*counts), rewards=torch.zeros(len(expected), dtype=torch.float64), progress=progress)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("correct", [[True, True, False, True], [False] * 4])
def test_groups_that_agree_have_no_advantage_even_without_epsilon(correct):
    members = torch.tensor([[0, 1], [1, 2], [2, 3]])
    assert group_advantages(torch.tensor(correct), members, 0.0).tolist() == [0.0] * 4
    assert group_advantages(torch.tensor(correct), members[:0], 0.0).tolist() == [0.0] * 4
