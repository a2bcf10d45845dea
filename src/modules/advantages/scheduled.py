"""One strategy, then another: explore first, exploit later."""

from __future__ import annotations

from torch import Tensor

from ...types import AdvantageStrategy, RewardGroups, require


class ScheduledAdvantage(AdvantageStrategy):
    """`first` until a fraction of the training is done, `then` from there on.

    Pass@k followed by Pass@1 is the recipe "P@k T. + P@1 T." (arXiv 2508.10751, §3.5): the paper switches between
    two runs, here both are one run with one optimizer state and one learning-rate schedule.

    Args:
        first: Strategy while `progress` < `switch`.
        then: Strategy from `progress` = `switch` on.
        switch: Fraction of training, 0..1.

    Raises:
        ValueError: `switch` is out of its range.

    >>> import torch
    >>> from tagrpo.modules.advantages import GroupAdvantage, PassAtKAdvantage
    >>> strategy = ScheduledAdvantage(PassAtKAdvantage(k=2, epsilon=0.0), GroupAdvantage(scale="none"), switch=0.5)
    >>> for progress in (0.4, 0.5):
    ...     strategy(RewardGroups(
    ...         rewards=torch.tensor([1.0, 0.0, 0.0, 0.0]), correct=torch.tensor([True, False, False, False]),
    ...         question=torch.tensor([0] * 4), prompt=torch.tensor([0] * 4), progress=progress))
    tensor([ 1.0000, -0.3333, -0.3333, -0.3333])
    tensor([ 0.7500, -0.2500, -0.2500, -0.2500])
    """

    def __init__(self, first: AdvantageStrategy, then: AdvantageStrategy, switch: float = 0.5) -> None:
        if not 0 <= switch <= 1:
            raise ValueError(f"Expected advantage.switch to lie between 0 and 1, but got {switch}.")
        require(first, AdvantageStrategy, "advantage.first")
        require(then, AdvantageStrategy, "advantage.then")
        self.first = first
        self.then = then
        self.switch = switch
        self.needs_entropy = first.needs_entropy or then.needs_entropy

    def __call__(self, groups: RewardGroups) -> Tensor:
        """[R] advantages, in the precision of the rewards."""
        return self._current(groups)(groups)

    def expected(self, groups: RewardGroups) -> Tensor:
        """[R] the advantages averaged over the random choices of the strategy that `progress` selects."""
        return self._current(groups).expected(groups)

    def _current(self, groups: RewardGroups) -> AdvantageStrategy:
        return self.first if groups.progress < self.switch else self.then
