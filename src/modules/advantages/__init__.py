"""Advantage strategies: plain classes, `RewardGroups` → [R] advantages. One strategy, one file.

The strategies of other methods are in `contrib`.
"""

from .combination import CombinationAdvantage
from .entropy_adaptive import EntropyAdaptiveAdvantage
from .exceeding import ExceedingPassAtKAdvantage
from .group import GroupAdvantage
from .pass_at_k import PassAtKAdvantage
from .without_easy import WithoutEasyAdvantage

__all__ = [
    "CombinationAdvantage",
    "EntropyAdaptiveAdvantage",
    "ExceedingPassAtKAdvantage",
    "GroupAdvantage",
    "PassAtKAdvantage",
    "WithoutEasyAdvantage",
]
