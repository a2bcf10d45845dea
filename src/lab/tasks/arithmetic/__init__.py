"""The embedded task: word problems whose difficulty depends on how they are phrased."""

from .reward import ChainReward
from .source import ArithmeticSource

__all__ = ["ArithmeticSource", "ChainReward"]
