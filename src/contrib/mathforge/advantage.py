"""Advantages of equal mean magnitude in every pool, weighted by the pool's difficulty in the batch (DGPO)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...modules.advantages import pools
from ...types import AdvantageStrategy, RewardGroups
from ...types.checks import check_choice


@dataclass(eq=False)
class DifficultyAwareAdvantage(AdvantageStrategy):
    """Advantages A_i = ν λ (R_i − r̄) / MAD over the pool of response i (arXiv 2601.20614, Eq. 4 to 6).

    MAD is the mean of |R_i − r̄|, so that |A_i / ν λ| has the mean 1 in every pool, however hard its question
    is. The weights are λ = V exp(D/T) / Σ exp(D/T) over the batch's V pools whose rewards differ, where D =
    −(share of correct responses), or −1 if no response is correct (Eq. 25). ν is the number of tokens in the
    batch divided by the number of tokens in these V pools: with `token_mean` and one mini-batch, the loss is
    then a mean over the tokens of these pools alone. Without `lengths`, a response counts as one token.

    For 0/1 rewards and G responses to one question, the expected gradient is (1 − p^G − (1−p)^G) / (2p (1−p))
    · ∇p: for many responses half the gradient of the log-odds of p.

    Advantages are exactly 0 in pools whose rewards are all equal, and in pools of a single response.

    Args:
        temperature: T, above 0; ∞ gives every pool the weight 1. The paper's is 2.
        group_by: The pool: `question` | `prompt` | `batch`.
        epsilon: Added to the sum of |R_i − r̄|; 1e-4 in the authors' code, 0 in the paper.
    """

    temperature: float = 2.0
    group_by: pools.Pool = "question"
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(
                f"Expected advantage.temperature to be greater than 0, but got {self.temperature}."
            )
        check_choice("group_by", self.group_by, pools.POOLS)
        pools.check_epsilon(self.epsilon)

    def __call__(self, groups: RewardGroups) -> Tensor:
        """Return the advantages, [R], in the precision of the rewards."""
        index, num_pools = pools.pool_index(groups, self.group_by)
        deviation = groups.rewards.double() - pools.pool_mean(groups.rewards, index, num_pools)[index]
        valid = ~pools.uniform_pools(groups.rewards, index, num_pools)
        accuracy = pools.pool_mean(groups.correct, index, num_pools)
        difficulty = -torch.where(accuracy > 0, accuracy, 1.0) / self.temperature
        weight = valid.sum() * difficulty.masked_fill(~valid, -torch.inf).softmax(0)
        lengths = (torch.ones_like(index) if groups.lengths is None else groups.lengths).double()
        weight = weight * lengths.sum() / lengths[valid[index]].sum()
        extent = (pools.pool_sum(deviation.abs(), index, num_pools) + self.epsilon) / pools.pool_size(
            index, num_pools
        )
        return pools.as_rewards(
            ((weight / extent)[index] * deviation).masked_fill(~valid[index], 0.0), groups
        )
