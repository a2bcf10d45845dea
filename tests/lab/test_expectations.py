"""Averages over random groups, against all draws and partitions."""

from __future__ import annotations

from itertools import combinations, permutations, product

import pytest
import torch

from tagrpo.lab.expectations import averaged
from tagrpo.modules.advantages import PassAtKAdvantage
from tagrpo.modules.advantages.pass_at_k import group_advantages
from tests.modules.advantages.conftest import pools_of


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
