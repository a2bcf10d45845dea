"""Embedded task: word problems whose difficulty depends on their phrasing."""

from .reward import ChainReward
from .source import ArithmeticSource

__all__ = ["ArithmeticSource", "ChainReward"]
