"""Pass@k as the reward of a group of k responses, by enumeration, bootstrap or disjoint groups.

Departures from the paper (arXiv 2508.10751): bootstrap advantages (Eq. 6) carry a constant factor n / (k · num_groups),
so that all three estimators estimate the same quantity (Eq. 14-15); disjoint groups are drawn at random, since the
responses of a pool need not come from one prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, sqrt
from typing import Literal

import torch
from torch import Tensor

from ...types import AdvantageStrategy, RewardGroups
from .pools import POOLS, Pool, as_rewards, check_choice, check_epsilon, pool_index, pool_size, pool_sum


def all_wrong(num_samples: Tensor, num_correct: Tensor, k: int) -> Tensor:
    """[…] float64 C(n − c, k) / C(n, k): the share of the groups of k of n responses without a correct one.

    A product: where such groups are rare, 1 − pass@k would round to 0. n = `num_samples` ≥ k, c = `num_correct`.

    >>> all_wrong(torch.tensor([4, 4]), torch.tensor([1, 3]), 2)  # C(3, 2) / C(4, 2); one wrong response makes no pair
    tensor([0.5000, 0.0000], dtype=torch.float64)
    """
    i = torch.arange(k, dtype=torch.float64)
    n, wrong = num_samples.double()[..., None], (num_samples - num_correct).double()[..., None]
    return ((wrong - i).clamp(min=0) / (n - i)).prod(-1)


def analytic_advantages(num_samples: Tensor, num_correct: Tensor, k: int, epsilon: float) -> tuple[Tensor, Tensor]:
    """Advantage of a correct and of a wrong response, averaged over all C(n, k) groups of k of the n responses.

    With m = 1 − C(n−c, k) / C(n, k) and σ = √(m (1 − m)) (arXiv 2508.10751, Eq. 11-15): A⁺ = (1 − m) / (σ + ε) and
    A⁻ = (1 − m − C(n−c−1, k−1) / C(n−1, k−1)) / (σ + ε) = −A⁺ c / (n − c): the advantages of a pool sum to zero.

    `num_samples` and `num_correct` are n and c of each pool, [P]; `epsilon` is ε. Two [P] float64 tensors, 0 where σ
    is: none correct, fewer than k wrong, or n ≤ k; also where the share of failing groups underflows float64.

    >>> analytic_advantages(torch.tensor([4]), torch.tensor([1]), 2, 0.0)  # m = 1/2: A⁺ = 1, A⁻ = 2 (1/2 − 2/3)
    (tensor([1.], dtype=torch.float64), tensor([-0.3333], dtype=torch.float64))
    """
    mixed = (num_correct > 0) & (num_samples - num_correct >= k)
    # Pools without signal are computed as if they had one, and masked.
    n, c = num_samples.double().where(mixed, k + 1.0), num_correct.double().where(mixed, 1.0)
    failing = all_wrong(n, c, k)
    right = failing / ((failing * (1 - failing)).sqrt() + epsilon)
    signal = mixed & (failing > 0)
    return right.where(signal, 0.0), (-right * c / (n - c)).where(signal, 0.0)


def group_advantages(correct: Tensor, members: Tensor, epsilon: float) -> Tensor:
    """[n] sum of the advantages of the groups that each response is in (arXiv 2508.10751, Eq. 1-3 and 6).

    A group's reward is 1 if any of its members is correct; its advantage is (reward − mean) / (σ + ε) over the groups,
    0 where all have the same reward. `correct` is [n] bool, `members` [num_groups, k] long, its rows.

    >>> group_advantages(torch.tensor([True, False, False, False]), torch.tensor([[0, 1], [2, 3]]), 0.0)
    tensor([ 1.,  1., -1., -1.], dtype=torch.float64)
    """
    total = torch.zeros(len(correct), dtype=torch.float64)
    rewards = correct[members].any(1)
    if not len(rewards) or rewards.all() or not rewards.any():
        return total
    values = rewards.double()
    values = (values - values.mean()) / (values.std(correction=0) + epsilon)
    return total.index_add_(0, members.flatten(), values.repeat_interleave(members.shape[1]))


def bootstrap_expectation(n: int, c: int, k: int, num_groups: int, epsilon: float) -> float:
    """A⁺, the advantage of a correct response averaged over the random groups of `bootstrap`.

    Each of B groups succeeds with probability u = 1 − C(n−c, k) / C(n, k), by itself, and holds k·c / (n·u) correct
    responses if it does: A⁺ = Σ_s Bin(s; B, u) · s / (B·u) · v(s), where v(s) = (1 − s/B) / (σ + ε) is the advantage
    of a successful group among s of B, σ = √(s/B · (1 − s/B)).

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


@dataclass(eq=False)
class PassAtKAdvantage(AdvantageStrategy):
    """The reward of a response is the pass@k of the groups of k responses that it is in (arXiv 2508.10751).

    - `analytic`: the average over all C(n, k) groups, in closed form (Eq. 11-15); without variance.
    - `bootstrap`: `num_groups` random groups of k different responses; n / (k · num_groups) times the sum of the
      advantages of a response's groups (Eq. 6), which tends to `analytic` as `num_groups` grows.
    - `full`: ⌊n/k⌋ random disjoint groups; a response has its group's advantage, the remainder 0 (§2.2).

    c and n are counts of `correct`; k = 1 is GRPO on them with the population's σ. Assumes that the responses of a pool
    are exchangeable. Degenerate pools are exactly 0: all wrong, fewer than k wrong, n ≤ k.

    The sampled estimators are functions of the groups, `seed` and `progress`: ranks and resumed runs agree. With few
    groups they are biased: they divide by the σ of the draw, and a draw whose groups all agree is 0.

    Args:
        k: Responses per group; 1 to the pool's size.
        estimator: `analytic` | `bootstrap` | `full`.
        group_by: The pool: `question` | `prompt` | `batch`.
        epsilon: Added to the standard deviation.
        num_groups: Of `bootstrap`; None is the size of the pool, as in the paper.
        seed: Of `bootstrap` and `full`.

    Raises:
        ValueError: an option is out of its range, or has no meaning for this estimator.

    >>> from tagrpo.modules.advantages.pools import verdicts
    >>> PassAtKAdvantage(k=2, epsilon=0.0)(verdicts([1, 0, 0, 0]))  # see `analytic_advantages`
    tensor([ 1.0000, -0.3333, -0.3333, -0.3333])
    """

    reads_rewards = False
    k: int
    estimator: Literal["analytic", "bootstrap", "full"] = "analytic"
    group_by: Pool = "question"
    epsilon: float = 1e-6
    num_groups: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"Expected advantage.k to be at least 1, but got {self.k}.")
        check_choice("estimator", self.estimator, ("analytic", "bootstrap", "full"))
        check_choice("group_by", self.group_by, POOLS)
        check_epsilon(self.epsilon)
        if self.num_groups is not None and (self.estimator != "bootstrap" or self.num_groups < 1):
            raise ValueError(
                "Expected advantage.num_groups to be null, or at least 1 with advantage.estimator=bootstrap, but got "
                f"{self.num_groups} with {self.estimator}."
            )

    def __call__(self, groups: RewardGroups) -> Tensor:
        """[R] advantages, in the precision of the rewards."""
        index, num_pools = pool_index(groups, self.group_by)
        if self.estimator == "analytic":
            n, c = pool_size(index, num_pools), pool_sum(groups.correct, index, num_pools)
            right, wrong = analytic_advantages(n, c, self.k, self.epsilon)
            return as_rewards(torch.where(groups.correct, right[index], wrong[index]), groups)
        generator = torch.Generator().manual_seed((self.seed + round(groups.progress * 2**40)) % 2**63)
        advantages = torch.zeros(len(index), dtype=torch.float64)
        for pool in range(num_pools):
            rows = (index == pool).nonzero()[:, 0]
            advantages[rows] = self._sampled(groups.correct[rows], generator)
        return as_rewards(advantages, groups)

    def expected(self, groups: RewardGroups) -> Tensor:
        """[R] the advantages averaged over the random groups of `bootstrap` and `full`, by exact sums."""
        if self.estimator == "analytic":
            return self(groups)
        index, num_pools = pool_index(groups, self.group_by)
        n, c = pool_size(index, num_pools), pool_sum(groups.correct, index, num_pools)
        pools = list(zip(n.int().tolist(), c.int().tolist(), strict=True))
        of_kind = {pool: self._expected(*pool) for pool in set(pools)}
        right = torch.tensor([of_kind[pool] for pool in pools], dtype=torch.float64)
        wrong = -right * c / (n - c).clamp(min=1)  # the advantages of a pool sum to zero, since those of its groups do
        return as_rewards(torch.where(groups.correct, right[index], wrong[index]), groups)

    def _expected(self, n: int, c: int) -> float:
        """A⁺ of a pool."""
        if not 0 < c < n or n <= self.k:
            return 0.0
        if self.estimator == "full":
            return full_expectation(n, c, self.k, self.epsilon)
        return bootstrap_expectation(n, c, self.k, self.num_groups or n, self.epsilon)

    def _sampled(self, correct: Tensor, generator: torch.Generator) -> Tensor:
        """[n] float64 advantages of one pool from random groups."""
        n = len(correct)
        if n <= self.k:
            return torch.zeros(n, dtype=torch.float64)
        if self.estimator == "full":
            members = torch.randperm(n, generator=generator)[: n // self.k * self.k].view(-1, self.k)
            return group_advantages(correct, members, self.epsilon)
        count = self.num_groups or n
        members = torch.rand(count, n, generator=generator).argsort(1)[:, : self.k]
        return group_advantages(correct, members, self.epsilon) * (n / (self.k * count))
