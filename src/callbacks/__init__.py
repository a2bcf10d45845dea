"""Callbacks: rollouts, and one file per diagnostic. Each can be used in another Lightning project."""

from .rollout import RolloutCallback

__all__ = ["RolloutCallback"]
