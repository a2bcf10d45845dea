"""Hard questions weigh more, easy ones less (GRPO-LEAD). Its length reward is a reward term, not part of this."""

from __future__ import annotations

import torch
from torch import Tensor

from ...types import AdvantageStrategy, RewardGroups
from .based import BasedAdvantage
from .group import GroupAdvantage
from .pools import POOLS, Pool, accuracy, check_choice, pool_index


class DifficultyWeightedAdvantage(BasedAdvantage):
    """Advantages of a base strategy, times a logistic weight of the pool's accuracy (arXiv 2504.09696, GRPO-LEAD).

    A' = A · w(ρ) if A > 0, else A · w(1 − ρ), with ρ = c/n and w(ρ) = low + (high − low) / (1 + e^(s (ρ − ρ0))):
    correct responses to hard questions are reinforced most, wrong responses to easy ones punished most.

    Zero where the base is. ρ counts `correct`, the base normalises the rewards. Where the base draws at random,
    `expected` weighs its average, which neglects that a response's advantage may change its sign between draws.

    Args:
        low: Weight that w tends to at high accuracy.
        high: Weight that w tends to at low accuracy.
        midpoint: ρ0, the accuracy of medium weight.
        steepness: s.
        base: Strategy that is weighted; None is `GroupAdvantage` over `group_by`, the paper's.
        group_by: The pool that ρ is taken over: `question` | `prompt` | `batch`.

    Raises:
        TypeError: `base` is no strategy.
        ValueError: an option is out of its range.

    >>> groups = RewardGroups(
    ...     rewards=torch.tensor([1.0, 0.0, 0.0, 0.0]), correct=torch.tensor([True, False, False, False]),
    ...     question=torch.zeros(4, dtype=torch.long), prompt=torch.zeros(4, dtype=torch.long))
    >>> strategy = DifficultyWeightedAdvantage(base=GroupAdvantage(scale="none"))
    >>> strategy(groups)  # 0.75 · w(0.25) and −0.25 · w(0.75), where w(0.25) = 1.4926 and w(0.75) = 0.95
    tensor([ 1.1195, -0.2375, -0.2375, -0.2375])
    """

    def __init__(
        self,
        low: float = 0.4,
        high: float = 1.5,
        midpoint: float = 0.75,
        steepness: float = 10.0,
        base: AdvantageStrategy | None = None,
        group_by: Pool = "question",
    ) -> None:
        if not 0 <= low <= high:
            raise ValueError(f"Expected 0 ≤ advantage.low ≤ advantage.high, but got {low} and {high}.")
        if not 0 <= midpoint <= 1 or steepness < 0:
            raise ValueError(
                "Expected advantage.midpoint between 0 and 1 and advantage.steepness of at least 0, but got "
                f"{midpoint} and {steepness}."
            )
        check_choice("group_by", group_by, POOLS)
        self.low = low
        self.high = high
        self.midpoint = midpoint
        self.steepness = steepness
        super().__init__(base or GroupAdvantage(group_by))
        self.group_by: Pool = group_by

    def weight(self, accuracy: Tensor) -> Tensor:
        """w(ρ), of the shape of ρ."""
        return self.low + (self.high - self.low) * torch.sigmoid(-self.steepness * (accuracy - self.midpoint))

    def changed(self, advantages: Tensor, groups: RewardGroups) -> Tensor:
        """[R] the weighted advantages."""
        index, num_pools = pool_index(groups, self.group_by)
        share = accuracy(groups, index, num_pools)[index]
        return advantages * torch.where(advantages > 0, self.weight(share), self.weight(1 - share))

    def expected(self, groups: RewardGroups) -> Tensor:
        """[R] one draw where the base is random: the average of weights that depend on the advantage is not known."""
        return self(groups)
