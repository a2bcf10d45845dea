"""Metrics as pure functions of tensors.

Arguments have one value per response: `group` is [R] long, with any numbers as ids; `correct` is [R] bool;
`answers` are R normalised final answers, None for a response without an answer. Results for groups are
[num_groups], in ascending order of the ids.
"""

from .diversity import answer_diversity, answer_entropy, majority_vote, mean_pairwise_distance
from .groups import (
    CAUSES,
    group_index,
    group_std,
    uniform_groups,
    uniform_subset_probability,
    zero_gradient_causes,
    zero_gradient_groups,
    zero_gradient_percentage,
    zero_gradient_probability,
)
from .pass_at_k import cover_at_tau, exact_pass_at_k, pass_at_k, support_change
from .statistics import DifficultyTest, Interval, difficulty_test, difficulty_variance, t_intervals

__all__ = [
    "CAUSES", "DifficultyTest", "Interval", "answer_diversity", "answer_entropy", "cover_at_tau", "difficulty_test",
    "difficulty_variance", "exact_pass_at_k", "group_index", "group_std", "majority_vote", "mean_pairwise_distance",
    "pass_at_k", "support_change", "t_intervals", "uniform_groups", "uniform_subset_probability",
    "zero_gradient_causes", "zero_gradient_groups", "zero_gradient_percentage", "zero_gradient_probability",
]  # fmt: skip
