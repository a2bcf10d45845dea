"""Advantages averaged over the random groups of a strategy, by exact sums."""

from __future__ import annotations

from math import comb, sqrt

import torch
from torch import Tensor

from ..modules.advantages import PassAtKAdvantage
from ..modules.advantages.based import BasedAdvantage
from ..modules.advantages.pools import as_rewards, pool_index, pool_size, pool_sum
from ..types import AdvantageStrategy, RewardGroups


def averaged(strategy: AdvantageStrategy, groups: RewardGroups) -> Tensor:
    """[R] advantages, averaged over the strategy's random choices; without such choices, its advantages.

    A strategy with random choices of its own has a method `expected`, which is called with the groups. A
    `BasedAdvantage` changes the average of its base, which is exact if the change is linear in the advantages.
    """
    if hasattr(strategy, "expected"):
        found: Tensor = strategy.expected(groups)
        return found
    if isinstance(strategy, BasedAdvantage):
        return as_rewards(strategy.changed(averaged(strategy.base, strategy.shaped(groups)), groups), groups)
    if not isinstance(strategy, PassAtKAdvantage) or strategy.estimator == "analytic":
        return strategy(groups)
    index, num_pools = pool_index(groups, strategy.group_by)
    n, c = pool_size(index, num_pools), pool_sum(groups.correct, index, num_pools)
    pools = list(zip(n.int().tolist(), c.int().tolist(), strict=True))
    of_kind = {pool: _of_pool(strategy, *pool) for pool in set(pools)}
    right = torch.tensor([of_kind[pool] for pool in pools], dtype=torch.float64)
    wrong = -right * c / (n - c).clamp(min=1)  # the advantages of a pool sum to zero, since those of its groups do
    return as_rewards(torch.where(groups.correct, right[index], wrong[index]), groups)


def _of_pool(strategy: PassAtKAdvantage, n: int, c: int) -> float:
    """A⁺ of a pool of n responses, c of them correct."""
    if not 0 < c < n or n <= strategy.k:
        return 0.0
    if strategy.estimator == "full":
        return full_expectation(n, c, strategy.k, strategy.epsilon)
    return bootstrap_expectation(n, c, strategy.k, strategy.num_groups or n, strategy.epsilon)


def bootstrap_expectation(n: int, c: int, k: int, num_groups: int, epsilon: float) -> float:
    """A⁺, the advantage of a correct response averaged over the random groups of `bootstrap`.

    Each of B groups succeeds independently with probability u = 1 − C(n−c, k) / C(n, k), and then holds k·c / (n·u)
    correct responses on average: A⁺ = Σ_s Bin(s; B, u) · s / (B·u) · v(s), where v(s) = (1 − s/B) / (σ + ε) is the
    advantage of a successful group among s of B, σ = √(s/B · (1 − s/B)).

    >>> round(bootstrap_expectation(4, 1, 2, 2, 0.0), 12)  # u = ½; one success of two has probability ½ and v = 1
    0.5
    """
    from scipy.stats import binom

    success = 1 - comb(n - c, k) / comb(n, k)
    chance = binom.pmf(range(num_groups), num_groups, success).tolist()
    values = (chance[s] * s * successful_group(s, num_groups, epsilon) for s in range(1, num_groups))
    return float(sum(values) / (num_groups * success))


def full_expectation(n: int, c: int, k: int, epsilon: float) -> float:
    """A⁺, the advantage of a correct response averaged over the random disjoint groups of `full`.

    Of the C(n, c) ways to place the correct responses, C(m, s) · N(s, j) · C(n − m·k, c − j) leave exactly s of the
    m = ⌊n/k⌋ groups successful with j correct responses in them; N(s, j) is the coefficient of x^j in ((1+x)^k − 1)^s.

    >>> full_expectation(4, 1, 2, 0.0)  # one of two groups always succeeds: v = 1
    1.0
    """
    groups = n // k
    rest, ways, total = n - groups * k, [1], 0.0
    for s in range(1, groups):
        ways = [
            sum(ways[j - i] * comb(k, i) for i in range(1, k + 1) if 0 <= j - i < len(ways))
            for j in range(len(ways) + k)
        ]
        correct = sum(j * count * comb(rest, c - j) for j, count in enumerate(ways) if j <= c)
        total += comb(groups, s) * correct / (comb(n, c) * c) * successful_group(s, groups, epsilon)
    return total


def successful_group(s: int, num_groups: int, epsilon: float) -> float:
    """The advantage of a group with a correct response, where s of `num_groups` have one; 0 < s < num_groups."""
    share = s / num_groups
    return (1 - share) / (sqrt(share * (1 - share)) + epsilon)
