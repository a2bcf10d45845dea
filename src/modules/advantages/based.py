"""Strategies that change the advantages of another one."""

from __future__ import annotations

from torch import Tensor

from ...types import AdvantageStrategy, RewardGroups, require
from .pools import as_rewards


class BasedAdvantage(AdvantageStrategy):
    """Advantages of a base strategy: of other rewards than those given (`shaped`), or changed afterwards (`changed`).

    It needs what the base needs besides its own, and reads rewards where the base does. Its average over the random
    choices of the base changes the base's average, which is exact where `changed` is linear in the advantages.

    Args:
        base: Strategy whose advantages are changed.

    Raises:
        TypeError: `base` is no strategy.

    >>> import torch
    >>> from tagrpo.modules.advantages import GroupAdvantage
    >>> class Halved(BasedAdvantage):
    ...     def changed(self, advantages, groups):
    ...         return advantages / 2
    >>> correct, question = torch.tensor([True, False]), torch.tensor([0, 0])
    >>> groups = RewardGroups(rewards=correct.float(), correct=correct, question=question, prompt=question)
    >>> Halved(GroupAdvantage(scale="none"))(groups)
    tensor([ 0.2500, -0.2500])
    """

    def __init__(self, base: AdvantageStrategy) -> None:
        require(base, AdvantageStrategy, "advantage.base")
        self.base = base
        self.needs_entropy = self.needs_entropy or base.needs_entropy
        self.needs_logprobs = self.needs_logprobs or base.needs_logprobs
        self.needs_history = self.needs_history or base.needs_history
        self.reads_rewards = base.reads_rewards

    def shaped(self, groups: RewardGroups) -> RewardGroups:
        """The groups that the base sees."""
        return groups

    def changed(self, advantages: Tensor, groups: RewardGroups) -> Tensor:  # noqa: ARG002
        """[R] advantages of this strategy, given those of the base."""
        return advantages

    def __call__(self, groups: RewardGroups) -> Tensor:
        """[R] advantages, in the precision of the rewards."""
        return as_rewards(self.changed(self.base(self.shaped(groups)), groups), groups)

    def expected(self, groups: RewardGroups) -> Tensor:
        """[R] the advantages averaged over the random choices of the base."""
        return as_rewards(self.changed(self.base.expected(self.shaped(groups)), groups), groups)
