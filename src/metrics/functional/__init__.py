"""Metrics as pure functions of tensors."""

from .groups import (
    answer_diversity,
    mean_pairwise_distance,
    uniform_groups,
    uniform_reward_percentage,
    zero_gradient_percentage,
)
from .intervals import Interval, bootstrap_interval
from .pass_at_k import pass_at_k, pass_at_k_curve

__all__ = [
    "Interval",
    "answer_diversity",
    "bootstrap_interval",
    "mean_pairwise_distance",
    "pass_at_k",
    "pass_at_k_curve",
    "uniform_groups",
    "uniform_reward_percentage",
    "zero_gradient_percentage",
]
