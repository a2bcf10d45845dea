"""Metrics as pure functions of tensors."""

from .answers import answer_diversity, maj_at_k
from .difficulty import difficulty_variance
from .embeddings import mean_pairwise_distance
from .groups import group_index, uniform_groups, uniform_reward_percentage, zero_gradient_percentage
from .intervals import Interval, bootstrap_interval, bootstrap_intervals, paired_interval
from .pass_at_k import pass_at_k, pass_at_k_curve
from .texts import distinct_n, distinct_share
from .weights import effective_sample_size

__all__ = [
    "Interval",
    "answer_diversity",
    "bootstrap_interval",
    "bootstrap_intervals",
    "difficulty_variance",
    "distinct_n",
    "distinct_share",
    "effective_sample_size",
    "group_index",
    "maj_at_k",
    "mean_pairwise_distance",
    "paired_interval",
    "pass_at_k",
    "pass_at_k_curve",
    "uniform_groups",
    "uniform_reward_percentage",
    "zero_gradient_percentage",
]
