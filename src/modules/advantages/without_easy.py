"""Advantages of hard questions alone: a step between Pass@1 and Pass@k training."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ...types import RewardGroups
from .based import BasedAdvantage
from .pools import POOLS, Pool, accuracy, check_choice


@dataclass(eq=False)
class WithoutEasyAdvantage(BasedAdvantage):
    """Advantages of a base strategy, 0 where the pool is easy (arXiv 2508.10751, §4.1.2 and Fig. 10).

    Easy is an accuracy c/n above `threshold`; c counts `correct`. The paper writes no number where it removes the
    advantages of easy problems; 0.6 is where its §4.1.1 calls a problem relatively easy.

    Args:
        base: Strategy whose advantages are kept: `GroupAdvantage(unbiased=False)` for the paper's Pass@1 training.
        threshold: Accuracy from 0 to 1; 1 keeps all.
        group_by: The pool whose accuracy counts: `question` | `prompt` | `batch`.

    Raises:
        TypeError: `base` is no strategy.
        ValueError: an option is out of its range.

    >>> from tagrpo.modules.advantages import GroupAdvantage
    >>> from tagrpo.modules.advantages.pools import verdicts
    >>> WithoutEasyAdvantage(GroupAdvantage(scale="none"))(verdicts([1, 0, 0], [1, 1, 0]))  # the second are easy
    tensor([ 0.6667, -0.3333, -0.3333,  0.0000,  0.0000,  0.0000])
    """

    threshold: float = 0.6
    group_by: Pool = "question"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("group_by", self.group_by, POOLS)
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"Expected advantage.threshold to lie between 0 and 1, but got {self.threshold}.")

    def changed(self, advantages: Tensor, groups: RewardGroups) -> Tensor:
        """[R] the advantages of hard pools alone."""
        return advantages.masked_fill(accuracy(groups, self.group_by) > self.threshold, 0.0)
