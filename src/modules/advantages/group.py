"""Group-relative advantages: GRPO, TA-GRPO, RLOO, Dr. GRPO, MaxRL and REINFORCE.

The methods differ in pool, baseline and scale.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ...types import AdvantageStrategy, RewardGroups
from ...types.checks import check_choice
from .pools import POOLS, Pool, as_rewards, check_epsilon, pool_index, pool_size, pool_sum, uniform_pools


@dataclass(eq=False)
class GroupAdvantage(AdvantageStrategy):
    """Rewards relative to the other responses of their pool.

    A_i = (R_i − b_i) / (σ + ε), over the pool of response i (TA-GRPO* is the ablation without pooling and
    anchoring):

    | method | group_by | baseline | scale | source |
    |---|---|---|---|---|
    | GRPO, TA-GRPO* | prompt | mean | std | TA-GRPO, Eq. 1 |
    | TA-GRPO and its v1 | question | mean | std | TA-GRPO, Eq. 3: one pool of (N+1)·G |
    | Dr. GRPO | prompt | mean | none | arXiv 2503.20783, section 3.2 |
    | RLOO | prompt | leave_one_out | none | arXiv 2402.14740, section 2.3, second-hand |
    | MaxRL | prompt | mean | mean | arXiv 2602.02710, second-hand: (R − r̄) / r̄, with ε = 0 |
    | REINFORCE, batch baseline | batch | mean | none or std | |

    A pool of one response, or of equal rewards, has advantages of exactly 0. With `baseline="none"`, a pool
    of equal rewards keeps R_i if `scale="none"`, and has 0 if it is scaled by its own σ = 0.

    With `scale="mean"`, the expected gradient of G responses with success rate p is (1 − (1 − p)^(G−1)) / p ·
    ∇p, which tends to ∇ log p; without a baseline the exponent is G. The rewards of each pool need a positive
    mean.

    Args:
        group_by: The pool: all responses of a `question`, of a sampled `prompt`, or of the whole `batch`.
        baseline: `mean` of the pool; `leave_one_out`, the mean of the pool's other responses; `none`.
        scale: `std` of the pool; `mean` of the pool's rewards; `batch`, the standard deviation over the whole
            batch; `none`.
        unbiased: Whether σ has Bessel's correction, as in the frameworks. False takes the population's σ, as
            Pass@k training (arXiv 2508.10751, Eq. 12) and `PassAtKAdvantage` do. At n = 32 the two differ by
            1.6 %.
        epsilon: Added to σ, or to the mean.

    Raises:
        ValueError: if an option is out of its range, or `scale="mean"` and a pool's rewards have no positive
            mean.

    >>> from tagrpo.modules.advantages.pools import verdicts
    >>> GroupAdvantage(unbiased=False, epsilon=0.0)(verdicts([1, 1, 0, 0]))
    tensor([ 1.,  1., -1., -1.])
    >>> GroupAdvantage(scale="mean", epsilon=0.0)(verdicts([1, 1, 0, 0]))  # (1 − ½) / ½ and (0 − ½) / ½
    tensor([ 1.,  1., -1., -1.])
    """

    group_by: Pool = "question"
    baseline: Literal["mean", "leave_one_out", "none"] = "mean"
    scale: Literal["std", "mean", "batch", "none"] = "std"
    unbiased: bool = True
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        check_choice("group_by", self.group_by, POOLS)
        check_choice("baseline", self.baseline, ("mean", "leave_one_out", "none"))
        check_choice("scale", self.scale, ("std", "mean", "batch", "none"))
        check_epsilon(self.epsilon)

    def __call__(self, groups: RewardGroups) -> Tensor:
        """Return the advantages, [R], in the precision of the rewards."""
        rewards = groups.rewards.double()
        index, num_pools = pool_index(groups, self.group_by)
        advantages = rewards
        if self.baseline != "none":
            count = pool_size(index, num_pools)[index]
            total = pool_sum(rewards, index, num_pools)[index]
            others = self.baseline == "leave_one_out"
            baseline = (total - rewards) / (count - 1).clamp(min=1) if others else total / count
            # Rounding must not leave 1e-17 where the pool has no signal: such responses are skipped as zeros.
            uniform = uniform_pools(rewards, index, num_pools)[index]
            advantages = (rewards - baseline).masked_fill(uniform, 0.0)
        return as_rewards(self._scaled(advantages, rewards, index, num_pools), groups)

    def _scaled(self, advantages: Tensor, rewards: Tensor, index: Tensor, num_pools: int) -> Tensor:
        if self.scale == "none":
            return advantages
        if self.scale == "batch":
            index = torch.zeros_like(index)
            num_pools = min(len(index), 1)
        count = pool_size(index, num_pools)
        mean = (pool_sum(rewards, index, num_pools) / count)[index]
        if self.scale == "mean":
            bad = (mean <= 0) & (advantages != 0)
            if bad.any():
                raise ValueError(
                    "Expected rewards with a positive mean where advantage.scale is mean, but a pool has a "
                    f"mean of {float(mean[bad][0]):g}. Choose reward_terms that leave rewards at least 0, or "
                    "another scale."
                )
            return (advantages / (mean + self.epsilon)).masked_fill(mean == 0, 0.0)
        squares = pool_sum((rewards - mean).square(), index, num_pools)
        std = (squares / (count - int(self.unbiased)).clamp(min=1)).sqrt()
        without_signal = uniform_pools(rewards, index, num_pools)[index]
        return (advantages / (std[index] + self.epsilon)).masked_fill(without_signal, 0.0)
