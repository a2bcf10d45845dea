"""Strategies that change the advantages of another strategy."""

from dataclasses import dataclass

from torch import Tensor

from ...types import AdvantageStrategy, RewardGroups, require
from .pools import as_rewards


@dataclass(eq=False)
class BasedAdvantage(AdvantageStrategy):
    """Strategy that changes the rewards (`shaped`) or the advantages (`changed`) of a base strategy.

    The strategy needs the entropy, log-probs and history that the base needs, and those that its own class
    declares. It reads rewards if the base does.

    Args:
        base: Strategy whose advantages are changed.

    Raises:
        TypeError: if `base` is not a strategy.

    >>> from tagrpo.modules.advantages import GroupAdvantage
    >>> from tagrpo.modules.advantages.pools import verdicts
    >>> class Halved(BasedAdvantage):
    ...     def changed(self, advantages, groups):
    ...         return advantages / 2
    >>> Halved(GroupAdvantage(scale="none"))(verdicts([1, 0]))
    tensor([ 0.2500, -0.2500])
    """

    base: AdvantageStrategy

    def __post_init__(self) -> None:
        require(self.base, AdvantageStrategy, "advantage.base")
        for need in ("needs_entropy", "needs_logprobs", "needs_history"):
            setattr(self, need, getattr(self, need) or getattr(self.base, need))
        self.reads_rewards = self.base.reads_rewards

    def shaped(self, groups: RewardGroups) -> RewardGroups:
        """Return the groups that the base gets."""
        return groups

    def changed(self, advantages: Tensor, groups: RewardGroups) -> Tensor:  # noqa: ARG002
        """Return the advantages of this strategy, [R], given the base's advantages."""
        return advantages

    def __call__(self, groups: RewardGroups) -> Tensor:
        """Return the advantages, [R], in the precision of the rewards."""
        return as_rewards(self.changed(self.base(self.shaped(groups)), groups), groups)
