"""Exceeding Pass@k (arXiv 2508.10751, Eq. 17), with the natural logarithm: the paper names no base."""

from __future__ import annotations

import torch
from torch import Tensor

from ...types import AdvantageStrategy, RewardGroups
from .pass_at_k import PassAtKAdvantage
from .pools import Pool, as_rewards, pool_index, pool_sum


class ExceedingPassAtKAdvantage(AdvantageStrategy):
    """Pass@k advantages that weigh the hardest questions most (arXiv 2508.10751, Eq. 17).

    A = f(c) · A_pass@k with f(c) = 4 / (10 · ln(c + 0.5)), c correct responses in the pool: f(1) ≈ 0.99,
    f(2) ≈ 0.44. The sum of absolute advantages then peaks at one correct response.

    Zero where `PassAtKAdvantage` (analytic) is; so c = 0, where f is negative, never counts.

    Args:
        k: Responses per group.
        group_by: The pool: `question` | `prompt` | `batch`.
        epsilon: Added to the standard deviation.

    >>> from tagrpo.modules.advantages.pools import verdicts
    >>> ExceedingPassAtKAdvantage(k=2, epsilon=0.0)(verdicts([1, 0, 0, 0]))  # 0.4 / ln 1.5 times (1, −1/3, −1/3, −1/3)
    tensor([ 0.9865, -0.3288, -0.3288, -0.3288])
    """

    reads_rewards = False

    def __init__(self, k: int, group_by: Pool = "question", epsilon: float = 1e-6) -> None:
        self.pass_at_k = PassAtKAdvantage(k, group_by=group_by, epsilon=epsilon)

    def __call__(self, groups: RewardGroups) -> Tensor:
        """[R] advantages, in the precision of the rewards."""
        index, num_pools = pool_index(groups, self.pass_at_k.group_by)
        correct = pool_sum(groups.correct, index, num_pools).clamp(min=1)
        factor = 4 / (10 * torch.log(correct + 0.5))
        return as_rewards(factor[index] * self.pass_at_k(groups), groups)
