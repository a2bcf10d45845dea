"""Pass@k as the reward of a group of k responses, by enumeration, bootstrap or disjoint groups.

Departures from the paper (arXiv 2508.10751):

- Bootstrap advantages (Eq. 6) are multiplied by n / (k · num_groups), so that all three estimators estimate
  the same quantity (Eq. 14-15).
- Disjoint groups are random, since the responses of a pool need not come from one prompt.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ...types import AdvantageStrategy, RewardGroups
from ...types.checks import check_choice
from .pools import POOLS, Pool, as_rewards, check_epsilon, pool_index, pool_size, pool_sum


def all_wrong(num_samples: Tensor, num_correct: Tensor, k: int) -> Tensor:
    """Return the share of groups of k responses that are all wrong, C(n − c, k) / C(n, k), […] float64.

    n is `num_samples` ≥ k, c is `num_correct`. The share is computed as a product, since 1 − pass@k would
    round to 0 if such groups are rare.
    """
    i = torch.arange(k, dtype=torch.float64)
    n = num_samples.double()[..., None]
    wrong = (num_samples - num_correct).double()[..., None]
    return ((wrong - i).clamp(min=0) / (n - i)).prod(-1)


def analytic_advantages(
    num_samples: Tensor, num_correct: Tensor, k: int, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Return the analytic advantages of correct and of wrong responses, two [P] float64 tensors.

    Advantages are averaged over all C(n, k) groups of k of the n responses.

    With m = 1 − C(n−c, k) / C(n, k) and σ = √(m (1 − m)) (arXiv 2508.10751, Eq. 11-15): A⁺ = (1 − m) / (σ +
    ε) and A⁻ = (1 − m − C(n−c−1, k−1) / C(n−1, k−1)) / (σ + ε) = −A⁺ c / (n − c): the advantages of a pool
    sum to zero.

    `num_samples` and `num_correct` are n and c of each pool, [P]; `epsilon` is ε. Both advantages are 0 if σ
    is 0, that is, if no response is correct, fewer than k are wrong, or n ≤ k. They are also 0 if the share
    of groups that are all wrong underflows float64.
    """
    mixed = (num_correct > 0) & (num_samples - num_correct >= k)
    # Pools without signal are computed as if they had one, and masked.
    n = num_samples.double().where(mixed, k + 1.0)
    c = num_correct.double().where(mixed, 1.0)
    failing = all_wrong(n, c, k)
    right = failing / ((failing * (1 - failing)).sqrt() + epsilon)
    signal = mixed & (failing > 0)
    return right.where(signal, 0.0), (-right * c / (n - c)).where(signal, 0.0)


def group_advantages(correct: Tensor, members: Tensor, epsilon: float) -> Tensor:
    """Return the sum of the advantages of all groups that contain each response, [n] float64.

    The formula is that of arXiv 2508.10751, Eq. 1-3 and 6.

    A group's reward is 1 if any of its members is correct. Its advantage is (reward − mean) / (σ + ε) over
    the groups, or 0 if all groups have the same reward. `correct` is [n] bool. `members` is [num_groups, k]
    long, rows of `correct`.

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


@dataclass(eq=False)
class PassAtKAdvantage(AdvantageStrategy):
    """Pass@k advantages: a response's reward is the pass@k of its groups of k responses (arXiv 2508.10751).

    - `analytic`: the average over all C(n, k) groups, in closed form (Eq. 11-15); without variance.
    - `bootstrap`: `num_groups` random groups of k different responses; n / (k · num_groups) times the sum of
      the advantages of a response's groups (Eq. 6), which tends to `analytic` as `num_groups` grows.
    - `full`: ⌊n/k⌋ random disjoint groups; responses have their group's advantage, left-over responses 0
      (§2.2).

    A pool has n responses, of which c are `correct`. k = 1 is GRPO on `correct` with the population's
    σ. The responses of a pool are assumed to be exchangeable. Advantages are exactly 0 if all responses of a
    pool are wrong, fewer than k are wrong, or n ≤ k.

    The random groups depend only on the pools' sizes, `seed` and `progress`, so that ranks and resumed runs
    agree. With few groups they are biased: they divide by the σ of the sampled groups, and are 0 if all
    sampled groups have the same reward.

    Args:
        k: Responses per group; 1 to the pool's size.
        estimator: `analytic` | `bootstrap` | `full`.
        group_by: The pool: `question` | `prompt` | `batch`.
        epsilon: Added to the standard deviation.
        num_groups: Number of groups that `bootstrap` samples; None is the pool's size, as in the paper.
        seed: Seed of the random groups of `bootstrap` and `full`.

    Raises:
        ValueError: if an option is out of its range, or the estimator does not have the option.

    >>> from tagrpo.modules.advantages.pools import verdicts
    >>> PassAtKAdvantage(k=2, epsilon=0.0)(verdicts([1, 0, 0, 0]))  # m = 1/2: A⁺ = 1, A⁻ = 2 (1/2 − 2/3)
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
                "Expected advantage.num_groups to be null, or at least 1 with "
                f"advantage.estimator=bootstrap, but got {self.num_groups} with {self.estimator}."
            )

    def __call__(self, groups: RewardGroups) -> Tensor:
        """Return the advantages, [R], in the precision of the rewards."""
        index, num_pools = pool_index(groups, self.group_by)
        if self.estimator == "analytic":
            n = pool_size(index, num_pools)
            c = pool_sum(groups.correct, index, num_pools)
            right, wrong = analytic_advantages(n, c, self.k, self.epsilon)
            return as_rewards(torch.where(groups.correct, right[index], wrong[index]), groups)
        generator = torch.Generator().manual_seed((self.seed + round(groups.progress * 2**40)) % 2**63)
        advantages = torch.zeros(len(index), dtype=torch.float64)
        for pool in range(num_pools):
            rows = (index == pool).nonzero()[:, 0]
            advantages[rows] = self._sampled(groups.correct[rows], generator)
        return as_rewards(advantages, groups)

    def _sampled(self, correct: Tensor, generator: torch.Generator) -> Tensor:
        """Return the advantages of one pool from random groups, [n] float64."""
        n = len(correct)
        if n <= self.k:
            return torch.zeros(n, dtype=torch.float64)
        if self.estimator == "full":
            members = torch.randperm(n, generator=generator)[: n // self.k * self.k].view(-1, self.k)
            return group_advantages(correct, members, self.epsilon)
        count = self.num_groups or n
        members = torch.rand(count, n, generator=generator).argsort(1)[:, : self.k]
        return group_advantages(correct, members, self.epsilon) * (n / (self.k * count))
