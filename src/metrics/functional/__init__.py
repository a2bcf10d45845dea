"""Metrics as pure functions of tensors.

Arguments are per response: `group` is [R] long, ids of any numbers, `correct` [R] bool, `answers` [R] normalised final
answers, None where none was found. Values of groups are [num_groups], in ascending order of the ids.
"""

from .answers import answer_diversity, answer_entropy, majority_vote
from .causes import CAUSES, zero_gradient_causes
from .difficulty import DifficultyTest, difficulty_test, difficulty_variance
from .groups import (
    group_index,
    uniform_groups,
    uniform_reward_percentage,
    uniform_subset_probability,
    zero_gradient_percentage,
    zero_gradient_probability,
)
from .intervals import Interval, t_intervals
from .pass_at_k import cover_at_tau, exact_pass_at_k, pass_at_k, support_change
from .texts import mean_pairwise_distance

__all__ = [
    "CAUSES", "DifficultyTest", "Interval", "answer_diversity", "answer_entropy", "cover_at_tau",
    "difficulty_test", "difficulty_variance",
    "exact_pass_at_k", "group_index", "majority_vote", "mean_pairwise_distance", "pass_at_k",
    "support_change", "t_intervals", "uniform_groups", "uniform_reward_percentage", "uniform_subset_probability",
    "zero_gradient_causes", "zero_gradient_percentage", "zero_gradient_probability",
]  # fmt: skip
