"""How many samples a set of importance weights is worth."""

from __future__ import annotations

import torch
from torch import Tensor

from .groups import group_index


def effective_sample_size(log_weights: Tensor) -> Tensor:
    """(Σ w)² / Σ w² of w = exp(log_weights) (Kish): n for equal weights, 1 when one weight is all that counts.

    Args:
        log_weights: [..., n] float, natural logarithms up to a constant; −inf is a weight of zero.

    Returns:
        [...] float64 in 1..n; NaN for no samples, or when all weights are zero.

    >>> effective_sample_size(torch.tensor([0.0, 0.0, -torch.inf]))
    tensor(2., dtype=torch.float64)
    >>> effective_sample_size(torch.tensor([3.0, 1.0]).log())  # 4² / (3² + 1²)
    tensor(1.6000, dtype=torch.float64)
    """
    log_weights = log_weights.double()
    return (2 * log_weights.logsumexp(-1) - (2 * log_weights).logsumexp(-1)).exp()


def group_effective_sample_share(log_weights: Tensor, group: Tensor) -> Tensor:
    """Effective sample size of each group's weights over its size: 1 for equal weights, 1 / n when one is all.

    With log π(o|q0) − log π(o|qn) of the responses to one rephrasing it says how many of them would count if they were
    reweighted to have come from the original question.

    Args:
        log_weights: [R] float, natural logarithms up to a constant per group; NaN is left out.
        group: [R] long.

    Returns:
        [num_groups] float64 in 0..1, in ascending order of group ids; NaN where all are NaN.

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
