"""How many samples a set of importance weights is worth."""

from __future__ import annotations

import torch
from torch import Tensor

from .groups import group_index


def group_effective_sample_share(log_weights: Tensor, group: Tensor) -> Tensor:
    """Effective sample size (Σ w)² / Σ w² (Kish) of each group's weights, divided by the group's size.

    1 for n equal weights, 1 / n where one weight is all that counts. With the weights π(o|q0) / π(o|qn) of the
    responses to one rephrasing it says what share of them would count, were they reweighted to stand for responses to
    the original question.

    Args:
        log_weights: [R] float, natural logarithms up to a constant per group; NaN is left out.
        group: [R] long.

    Returns:
        [num_groups] float64 in 0..1; NaN where all are NaN.

    >>> group_effective_sample_share(torch.tensor([3.0, 1.0, 1.0]).log(), torch.tensor([0, 0, 1]))  # 1.6 of 2, 1 of 1
    tensor([0.8000, 1.0000], dtype=torch.float64)
    """
    index, count = group_index(group)
    known = ~log_weights.isnan()
    logs, rows = log_weights[known].double(), index[known]
    top = logs.new_full((count,), -torch.inf).scatter_reduce(0, rows, logs, "amax")
    weights = (logs - top[rows]).exp()
    sums, squares = (torch.bincount(rows, weights=w, minlength=count) for w in (weights, weights.square()))
    return sums.square() / squares / torch.bincount(rows, minlength=count)
