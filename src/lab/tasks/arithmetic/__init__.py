"""The embedded task: word problems whose difficulty depends on how they are phrased."""

from .source import ArithmeticSource

__all__ = ["ArithmeticSource"]
