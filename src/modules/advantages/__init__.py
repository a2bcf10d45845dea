"""Advantage strategies: plain classes, `RewardGroups` → [R] advantages. One strategy, one file."""

from .group import GroupAdvantage

__all__ = ["GroupAdvantage"]
