"""Advantage strategies: plain classes, `RewardGroups` → [R] advantages. Those of other methods are in `contrib`."""

from .difficulty import CombinationAdvantage, EntropyAdaptiveAdvantage, ExceedingPassAtKAdvantage, WithoutEasyAdvantage
from .group import GroupAdvantage
from .pass_at_k import PassAtKAdvantage

__all__ = [
    "CombinationAdvantage", "EntropyAdaptiveAdvantage", "ExceedingPassAtKAdvantage", "GroupAdvantage",
    "PassAtKAdvantage", "WithoutEasyAdvantage",
]  # fmt: skip
