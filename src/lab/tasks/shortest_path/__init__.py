"""Embedded task: the shortest path through a small grid with walls. Most questions have several answers."""

from .reward import ShortestPathReward
from .source import ShortestPathSource

__all__ = ["ShortestPathReward", "ShortestPathSource"]
