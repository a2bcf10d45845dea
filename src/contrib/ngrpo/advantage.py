"""Group advantages with a virtual success, so that the policy learns also from all-wrong pools (NGRPO)."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...modules.advantages.group import GroupAdvantage
from ...modules.advantages.pools import POOLS, Pool, pool_index
from ...types import AdvantageStrategy, RewardGroups
from ...types.checks import check_choice


@dataclass(eq=False)
class VirtualSuccessAdvantage(AdvantageStrategy):
    """NGRPO's advantage calibration (arXiv 2509.18851): GRPO over the pool and one virtual best response.

    A_i = (R_i − mean) / (σ + ε), where mean and σ (with Bessel's correction) are over the n rewards of the
    pool and `reward`. For 0/1 rewards, the advantages of an all-wrong pool are −1 / √(n + 1), the advantages
    of mixed pools are lowered, and the advantages of an all-correct pool stay 0. The policy does not learn
    from the virtual response, so that the advantages of an all-wrong or a mixed pool sum to less than 0.

    No reward should exceed `reward`. A larger shaped reward counts as more than a success.

    Args:
        reward: Reward of the virtual response: the largest reward of the task.
        group_by: The pool: `question` | `prompt` | `batch`.
        epsilon: Added to σ.
    """

    reward: float = 1.0
    group_by: Pool = "question"
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        check_choice("group_by", self.group_by, POOLS)
        self.base = GroupAdvantage("question", epsilon=self.epsilon)

    def __call__(self, groups: RewardGroups) -> Tensor:
        """Return the advantages, [R], in the precision of the rewards."""
        index, num_pools = pool_index(groups, self.group_by)
        virtual = groups.rewards.new_full((num_pools,), self.reward)
        pools = torch.cat([index, torch.arange(num_pools)])
        verdicts = torch.cat([groups.correct, virtual.new_ones(num_pools, dtype=torch.bool)])
        rewards = torch.cat([groups.rewards, virtual])
        extended = replace(groups, rewards=rewards, correct=verdicts, question=pools, prompt=pools)
        return self.base(extended)[: len(index)]
