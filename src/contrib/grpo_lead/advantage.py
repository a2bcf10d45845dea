"""Hard questions weigh more, easy ones less, and short correct responses earn more, by a reward term (GRPO-LEAD)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ...modules.advantages.based import BasedAdvantage
from ...modules.advantages.group import GroupAdvantage
from ...modules.advantages.pools import POOLS, Pool, accuracy, check_choice
from ...types import AdvantageStrategy, QuestionGroup, RewardGroups, Rollouts


@dataclass(eq=False, kw_only=True)
class DifficultyWeightedAdvantage(BasedAdvantage):
    """Advantages of a base strategy, times a logistic weight of the pool's accuracy (arXiv 2504.09696, GRPO-LEAD).

    A' = A · w(ρ) if A > 0, else A · w(1 − ρ), with ρ = c/n and w(ρ) = low + (high − low) / (1 + e^(s (ρ − ρ0))):
    correct responses to hard questions are reinforced most, wrong responses to easy ones punished most.

    Zero where the base is. ρ counts `correct`, the base normalises the rewards.

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
            raise ValueError(f"Expected 0 ≤ advantage.low ≤ advantage.high, but got {self.low} and {self.high}.")
        if not 0 <= self.midpoint <= 1 or self.steepness < 0:
            raise ValueError(
                "Expected advantage.midpoint between 0 and 1 and advantage.steepness of at least 0, but got "
                f"{self.midpoint} and {self.steepness}."
            )
        check_choice("group_by", self.group_by, POOLS)
        self.base = self.base or GroupAdvantage(self.group_by)
        super().__post_init__()

    def weight(self, accuracy: Tensor) -> Tensor:
        """w(ρ), of the shape of ρ."""
        return self.low + (self.high - self.low) * torch.sigmoid(-self.steepness * (accuracy - self.midpoint))

    def changed(self, advantages: Tensor, groups: RewardGroups) -> Tensor:
        """[R] the weighted advantages."""
        share = accuracy(groups, self.group_by)
        return advantages * torch.where(advantages > 0, self.weight(share), self.weight(1 - share))

    def expected(self, groups: RewardGroups) -> Tensor:
        """[R] advantages; of one draw if the base is random: weights depend on the sign of A, so no mean is known."""
        return self(groups)


def length_reward(lengths: Tensor, correct: Tensor, group: Tensor, alpha: float = 0.05, wrong: float = -1.0) -> Tensor:
    """GRPO-LEAD's length-dependent accuracy reward with its explicit penalty (arXiv 2504.09696, second-hand).

    R = exp(−α z) where correct, `wrong` elsewhere; z = (length − μ) / (σ + 1e-6), μ and σ (Bessel's correction, as in
    the authors' code) being those of the *correct* responses of the group. z is 0, and R is 1, where a group has a
    single correct response or correct ones of equal length. The authors' code leaves groups of short responses as they
    are (three shortest under 4,000 tokens on average), which the paper does not mention; there is no such exception
    here. `lengths` [R] are in tokens, `correct` is [R] bool, `group` [R] long of any values; returns [R] float32.

    >>> length_reward(torch.tensor([10, 20, 30, 99]), torch.tensor([True, True, True, False]), torch.zeros(4))
    tensor([ 1.0513,  1.0000,  0.9512, -1.0000])
    """
    lengths = lengths.double()
    rewards = torch.full(lengths.shape, wrong, dtype=torch.float64)
    for pool in torch.unique(group):
        rows = (group == pool) & correct
        deviation = lengths[rows] - lengths[rows].mean()
        spread = lengths[rows].std() if rows.sum() > 1 else torch.zeros((), dtype=torch.float64)
        rewards[rows] = (-alpha * deviation / (spread + 1e-6)).exp()
    return rewards.float()


class LengthReward:
    """weight · (`length_reward` − verdict), so that at weight 1 the reward *is* GRPO-LEAD's.

    Args:
        alpha: Strength of the preference for short correct responses.
        wrong: Reward of a wrong response.
        group_by: Lengths are compared among the responses to a `question`, rephrasings included, or to one `prompt`;
            without rephrasings both are the same.
        weight: Factor.
    """

    # Not a dataclass: Hydra would take it for settings, since reward terms are values of a mapping.
    def __init__(
        self,
        alpha: float = 0.05,
        wrong: float = -1.0,
        group_by: Literal["question", "prompt"] = "question",
        weight: float = 1.0,
    ) -> None:
        check_choice("group_by", group_by, ("question", "prompt"), "reward_terms")
        self.alpha, self.wrong, self.group_by, self.weight = alpha, wrong, group_by, weight

    def __call__(self, rollouts: Rollouts, groups: Sequence[QuestionGroup]) -> Tensor:  # noqa: ARG002
        """[R] float32."""
        pool = rollouts.question if self.group_by == "question" else rollouts.prompt
        shaped = length_reward(rollouts.lengths, rollouts.correct, pool, self.alpha, self.wrong)
        return self.weight * (shaped - rollouts.correct.float())
