"""Exploration by final answers: a bonus for answers that are rare in the run (arXiv 2509.06941).

Only the paper's abstract was read. Its formulas come from other sources, which do not say how responses
without an answer are counted. Here, all responses without an answer count as having the same answer.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from ...modules.advantages.based import BasedAdvantage
from ...modules.advantages.pools import POOLS, Pool, history_of, pool_index, pool_mean
from ...types import RewardGroups
from ...types.checks import check_choice


@dataclass(eq=False)
class HistoricalExplorationAdvantage(BasedAdvantage):
    """Advantages of a base strategy plus c (b − b0), b = min(1, 1 / √N(q, a)) (arXiv 2509.06941, UCB).

    N(q, a) is the number of earlier responses with the final answer a to question q and its rephrasings. With
    b0 = ½ (UCB-Con), answers that were given more than four times are discouraged. With `mean` (UCB-Mean), b0
    is the mean of b over the responses of the pool, so that equally frequent answers have no bonus. With 0,
    the bonus is plain UCB. The bonus does not depend on verdicts: it is also added in pools of equal rewards.

    Args:
        base: Strategy whose advantages get the bonus.
        coefficient: c, at least 0.
        baseline: b0, from 0 to 1, or `mean`.
        group_by: The pool in which `mean` is computed: `question` | `prompt` | `batch`.
    """

    needs_history = True
    coefficient: float = 0.1
    baseline: float | Literal["mean"] = 0.5
    group_by: Pool = "question"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("group_by", self.group_by, POOLS)
        if self.coefficient < 0:
            raise ValueError(f"Expected advantage.coefficient to be at least 0, but got {self.coefficient}.")
        if self.baseline != "mean" and not (
            isinstance(self.baseline, int | float) and 0 <= self.baseline <= 1
        ):
            raise ValueError(
                f"Expected advantage.baseline to be `mean` or from 0 to 1, but got {self.baseline!r}."
            )

    def changed(self, advantages: Tensor, groups: RewardGroups) -> Tensor:
        """Return the base's advantages plus the bonus, [R]."""
        bonus = history_of(groups).same_answer.double().clamp(min=1).rsqrt()
        if self.baseline == "mean":
            index, num_pools = pool_index(groups, self.group_by)
            return advantages + self.coefficient * (bonus - pool_mean(bonus, index, num_pools)[index])
        return advantages + self.coefficient * (bonus - self.baseline)
