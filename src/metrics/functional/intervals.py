"""Confidence intervals over questions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from scipy import stats
from torch import Tensor


class Interval(NamedTuple):
    """A mean and the bounds of its confidence interval."""

    value: float
    low: float
    high: float


def t_intervals(*sets: Tensor, confidence: float = 0.95) -> list[Interval]:
    """Student's t-interval of the mean over questions, of each column; no bound leaves the range of the values.

    Args:
        sets: [Q, K] float, one row per question. Of several sets, such as benchmarks, it is the mean of their means,
            with the degrees of freedom of the smallest one, which errs on the safe side.
        confidence: Nominal coverage, 0..1. With ten questions, or where most questions have the same value, the actual
            one is up to three percentage points lower.

    Returns:
        Mean and bounds of each column; NaN for no questions, bounds equal to the mean for one.

    >>> t_intervals(torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
    [Interval(value=0.0, low=0.0, high=0.0), Interval(value=1.0, low=1.0, high=1.0)]
    >>> t_intervals(torch.zeros(3, 1), torch.ones(1, 1))
    [Interval(value=0.5, low=0.5, high=0.5)]
    """
    smallest = min(map(len, sets))
    if not smallest:
        return [Interval(torch.nan, torch.nan, torch.nan)] * sets[0].shape[1]
    tables = [table.double().cpu() for table in sets]
    means = torch.stack([table.mean(0) for table in tables]).mean(0)
    lowest = torch.stack([table.amin(0) for table in tables]).mean(0)
    highest = torch.stack([table.amax(0) for table in tables]).mean(0)
    errors = torch.stack([table.var(0, correction=min(1, len(table) - 1)) / len(table) for table in tables]).sum(0)
    reach = float(stats.t.ppf((1 + confidence) / 2, max(smallest - 1, 1))) * errors.sqrt() / len(tables)
    bounds = means, (means - reach).clamp(min=lowest), (means + reach).clamp(max=highest)
    return [Interval(*column) for column in torch.stack(bounds, -1).tolist()]
