"""Confidence intervals by bootstrap over questions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Interval(NamedTuple):
    """A mean and the bounds of its confidence interval."""

    value: float
    low: float
    high: float


def bootstrap_interval(values: Tensor, confidence: float = 0.95, num_resamples: int = 2000, seed: int = 0) -> Interval:
    """Percentile bootstrap of the mean over questions. Give paired differences for an interval of a difference.

    Args:
        values: [Q] float, one per question.
        confidence: Nominal coverage, 0..1.
        num_resamples: Resamples of Q questions with replacement.
        seed: Of the resampling.

    Returns:
        Mean and bounds; all NaN for no questions, bounds equal to the mean for one.

    >>> bootstrap_interval(torch.tensor([0.5, 0.5, 0.5]))
    Interval(value=0.5, low=0.5, high=0.5)
    """
    values = values.double()
    if not len(values):
        return Interval(torch.nan, torch.nan, torch.nan)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(len(values), (num_resamples, len(values)), generator=generator)
    bounds = torch.tensor([(1 - confidence) / 2, (1 + confidence) / 2], dtype=torch.float64)
    low, high = values[rows].mean(1).quantile(bounds).tolist()
    return Interval(float(values.mean()), low, high)
