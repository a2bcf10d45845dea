"""Advantages for a risk-seeking utility, which lies between the rewards' mean and maximum (RS-GRPO)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...modules.advantages.pools import POOLS, Pool, as_rewards, pool_index, pool_mean, uniform_pools
from ...types import AdvantageStrategy, RewardGroups
from ...types.checks import check_choice


@dataclass(eq=False)
class RiskSensitiveAdvantage(AdvantageStrategy):
    """Advantages A_i = (e^{β R_i} / m − 1) / β, with m the mean of e^{β R} over the pool (arXiv 2509.24261).

    This gives the gradient of the utility (1/β) ln E[e^{β R}], with the pool's mean as expectation. The
    utility tends to the mean reward for β → 0 (`GroupAdvantage` with scale none), and to the largest reward
    for β → ∞. For rewards of 1 and 0 and a large pool, the expected gradient is (e^β − 1) / (β (1 + p (e^β −
    1))) · ∇p. For a finite pool, the gradient is biased, as every ratio of means is. The formula follows the
    authors' code (Jackory/RS-GRPO, risk_sensitive_adv.py); the paper was not read.

    Advantages are exactly 0 in pools whose rewards are all equal, and in pools of a single response (in the
    authors' code, they are (e^{β R} − 1) / β there).

    Args:
        beta: β, not 0. Positive values seek risk, and negative values avoid it. The authors recommend 2.
        group_by: The pool: `question` | `prompt` | `batch`.
    """

    beta: float
    group_by: Pool = "question"

    def __post_init__(self) -> None:
        if self.beta == 0 or not math.isfinite(self.beta):
            raise ValueError(
                f"Expected advantage.beta to be a number other than 0, but got {self.beta}. Its limit at 0 "
                "is advantage=group advantage.scale=none."
            )
        check_choice("group_by", self.group_by, POOLS)

    def __call__(self, groups: RewardGroups) -> Tensor:
        """Return the advantages, [R], in the precision of the rewards."""
        index, num_pools = pool_index(groups, self.group_by)
        exponent = self.beta * groups.rewards.double()
        # Relative to the pool's largest, which cancels in the quotient, so that no power overflows.
        largest = exponent.new_full((num_pools,), -torch.inf).scatter_reduce_(0, index, exponent, "amax")
        utility = (exponent - largest[index]).exp()
        mean, uniform = pool_mean(utility, index, num_pools), uniform_pools(exponent, index, num_pools)
        advantages = (utility / mean[index] - 1) / self.beta
        return as_rewards(advantages.masked_fill(uniform[index], 0.0), groups)
