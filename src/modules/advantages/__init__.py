"""Advantage strategies: plain classes that map `RewardGroups` to [R] advantages.

Strategies of other methods are in `contrib`.
"""

from .difficulty import (
    CombinationAdvantage,
    EntropyAdaptiveAdvantage,
    ExceedingPassAtKAdvantage,
    WithoutEasyAdvantage,
)
from .group import GroupAdvantage
from .pass_at_k import PassAtKAdvantage

__all__ = [
    "CombinationAdvantage", "EntropyAdaptiveAdvantage", "ExceedingPassAtKAdvantage", "GroupAdvantage",
    "PassAtKAdvantage", "WithoutEasyAdvantage",
]  # fmt: skip
