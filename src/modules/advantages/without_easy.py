"""Advantages of hard questions alone: a step between Pass@1 and Pass@k training."""

from __future__ import annotations

from torch import Tensor

from ...types import AdvantageStrategy, RewardGroups
from .based import BasedAdvantage
from .pools import POOLS, Pool, accuracy, check_choice, pool_index


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

    >>> import torch
    >>> from tagrpo.modules.advantages import GroupAdvantage
    >>> correct = torch.tensor([True, False, False, True, True, False])
    >>> groups = RewardGroups(
    ...     rewards=correct.float(), correct=correct, question=torch.tensor([0] * 3 + [1] * 3), prompt=torch.zeros(6))
    >>> WithoutEasyAdvantage(GroupAdvantage(scale="none"))(groups)  # ⅓ of the first are correct, ⅔ of the second
    tensor([ 0.6667, -0.3333, -0.3333,  0.0000,  0.0000,  0.0000])
    """

    def __init__(self, base: AdvantageStrategy, threshold: float = 0.6, group_by: Pool = "question") -> None:
        super().__init__(base)
        check_choice("group_by", group_by, POOLS)
        if not 0 <= threshold <= 1:
            raise ValueError(f"Expected advantage.threshold to lie between 0 and 1, but got {threshold}.")
        self.threshold = threshold
        self.group_by: Pool = group_by

    def changed(self, advantages: Tensor, groups: RewardGroups) -> Tensor:
        """[R] the advantages of hard pools alone."""
        index, num_pools = pool_index(groups, self.group_by)
        return advantages.masked_fill((accuracy(groups, index, num_pools) > self.threshold)[index], 0.0)
