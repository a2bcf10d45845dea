"""Pass@1 where a question is hard, Pass@k where it is easy."""

from __future__ import annotations

from torch import Tensor

from ...types import AdvantageStrategy, RewardGroups
from .group import GroupAdvantage
from .pass_at_k import PassAtKAdvantage
from .pools import Pool, accuracy, as_rewards


class CombinationAdvantage(AdvantageStrategy):
    """A = c/n · A_pass@k + (1 − c/n) · A_pass@1 (arXiv 2508.10751, Eq. 18).

    c of the pool's n responses are correct. A_pass@k is `PassAtKAdvantage` (analytic) and counts `correct`; A_pass@1
    is `GroupAdvantage` with mean and standard deviation, on the rewards. Both divide by the population's σ (Eq. 12).

    Zero where both are. A pool with fewer than k wrong responses keeps the share 1 − c/n of A_pass@1.

    Args:
        k: Responses per group of Pass@k.
        group_by: The pool of both: `question` | `prompt` | `batch`.
        epsilon: Added to both standard deviations.

    >>> from tagrpo.modules.advantages.pools import verdicts
    >>> CombinationAdvantage(k=2, epsilon=0.0)(verdicts([1, 0, 0, 0]))  # ¼ (1, −⅓, …) + ¾ (√3, −1/√3, …)
    tensor([ 1.5490, -0.5163, -0.5163, -0.5163])
    """

    def __init__(self, k: int, group_by: Pool = "question", epsilon: float = 1e-6) -> None:
        self.group_by: Pool = group_by
        self.pass_at_k = PassAtKAdvantage(k, group_by=group_by, epsilon=epsilon)
        self.pass_at_1 = GroupAdvantage(group_by, unbiased=False, epsilon=epsilon)

    def __call__(self, groups: RewardGroups) -> Tensor:
        """[R] advantages, in the precision of the rewards."""
        share = accuracy(groups, self.group_by)
        return as_rewards(share * self.pass_at_k(groups) + (1 - share) * self.pass_at_1(groups), groups)
