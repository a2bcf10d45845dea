"""Embedded task: make a target from all of the given numbers. Many expressions are correct."""

from .reward import CountdownReward
from .source import CountdownSource

__all__ = ["CountdownReward", "CountdownSource"]
