"""Larger weights for hard questions, and smaller weights for easy questions (GRPO-LEAD).

The length reward of GRPO-LEAD is a reward term (`terms.py`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...modules.advantages.based import BasedAdvantage
from ...modules.advantages.group import GroupAdvantage
from ...modules.advantages.pools import POOLS, Pool, accuracy
from ...types import AdvantageStrategy, RewardGroups
from ...types.checks import check_choice


@dataclass(eq=False, kw_only=True)
class DifficultyWeightedAdvantage(BasedAdvantage):
    """Advantages of a base strategy, times a logistic weight of the pool's accuracy.

    This is the difficulty weight of GRPO-LEAD (arXiv 2504.09696). A' = A · w(ρ) if A > 0, else A · w(1 − ρ),
    with ρ = c/n and w(ρ) = low + (high − low) / (1 + e^(s (ρ − ρ0))). Correct responses to hard questions are
    reinforced most, and wrong responses to easy questions are punished most.

    An advantage is zero if the base strategy's is zero. ρ is computed from `correct`, and the base strategy
    reads the rewards.

    Args:
        low: Limit of w at high accuracy.
        high: Limit of w at low accuracy.
        midpoint: ρ0, the accuracy at which w is midway between `low` and `high`.
        steepness: s.
        base: Strategy whose advantages are weighted; None is `GroupAdvantage` over `group_by`, the paper's
            choice.
        group_by: The pool in which ρ is computed: `question` | `prompt` | `batch`.

    Raises:
        TypeError: if `base` is not a strategy.
        ValueError: if an option is out of its range.

    >>> from tagrpo.modules.advantages import GroupAdvantage
    >>> from tagrpo.modules.advantages.pools import verdicts
    >>> strategy = DifficultyWeightedAdvantage(base=GroupAdvantage(scale="none"))
    >>> strategy(verdicts([1, 0, 0, 0]))  # 0.75 · w(¼) and −0.25 · w(¾), where w(¼) = 1.4926 and w(¾) = 0.95
    tensor([ 1.1195, -0.2375, -0.2375, -0.2375])
    """

    low: float = 0.4
    high: float = 1.5
    midpoint: float = 0.75
    steepness: float = 10.0
    base: AdvantageStrategy = None  # type: ignore[assignment]  # set below
    group_by: Pool = "question"

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high:
            raise ValueError(
                f"Expected 0 ≤ advantage.low ≤ advantage.high, but got {self.low} and {self.high}."
            )
        if not 0 <= self.midpoint <= 1 or self.steepness < 0:
            raise ValueError(
                "Expected advantage.midpoint between 0 and 1 and advantage.steepness of at least 0, but got "
                f"{self.midpoint} and {self.steepness}."
            )
        check_choice("group_by", self.group_by, POOLS)
        self.base = self.base or GroupAdvantage(self.group_by)
        super().__post_init__()

    def weight(self, accuracy: Tensor) -> Tensor:
        """Return the weight w(ρ) of each `accuracy` ρ, in the same shape."""
        return self.low + (self.high - self.low) * torch.sigmoid(-self.steepness * (accuracy - self.midpoint))

    def changed(self, advantages: Tensor, groups: RewardGroups) -> Tensor:
        """Return the weighted advantages, [R]."""
        share = accuracy(groups, self.group_by)
        return advantages * torch.where(advantages > 0, self.weight(share), self.weight(1 - share))

    def expected(self, groups: RewardGroups) -> Tensor:
        """Return the advantages, [R]; if the base is random, the advantages of a single draw.

        An average over draws would not be exact, since the weight depends on the sign of the base's
        advantage.
        """
        return self(groups)
