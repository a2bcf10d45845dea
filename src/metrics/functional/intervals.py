"""Confidence intervals by bootstrap over questions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from scipy import stats
from torch import Tensor

CHUNK = 1 << 22  # resampled rows at a time: 32 MiB of indices


class Interval(NamedTuple):
    """A mean and the bounds of its confidence interval."""

    value: float
    low: float
    high: float


def bootstrap_intervals(
    *sets: Tensor, confidence: float = 0.95, num_resamples: int = 2000, seed: int = 0
) -> list[Interval]:
    """Expanded percentile bootstrap of the mean over questions, of each column from the same resamples.

    The quantiles are those that make the interval of a normal mean a t-interval (Hesterberg 2015, arXiv 1411.5279):
    between plain percentiles of n values the interval is too short by √((n − 1) / n), and by the difference
    between the normal and Student's t distribution. Bounds never leave the range of the values.

    Args:
        sets: [Q, K] float, one row per question. Of several sets, such as benchmarks, it is the mean of their means;
            questions are resampled within their set, with the quantiles of the smallest one, which errs on the safe
            side.
        confidence: Nominal coverage, 0..1. With ten questions, or where most questions have the same value, the actual
            one is up to three percentage points lower.
        num_resamples: Resamples of Q questions with replacement.
        seed: Of the resampling.

    Returns:
        Mean and bounds of each column; NaN for no questions, bounds equal to the mean for one.

    >>> bootstrap_intervals(torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
    [Interval(value=0.0, low=0.0, high=0.0), Interval(value=1.0, low=1.0, high=1.0)]
    >>> bootstrap_intervals(torch.zeros(3, 1), torch.ones(1, 1))
    [Interval(value=0.5, low=0.5, high=0.5)]
    """
    smallest = min(map(len, sets))
    if not smallest:
        return [Interval(torch.nan, torch.nan, torch.nan)] * sets[0].shape[1]
    tables = [table.double().cpu() for table in sets]
    generator = torch.Generator().manual_seed(seed)
    means = torch.stack([_resampled_means(table, num_resamples, generator) for table in tables]).mean(0)
    tail = expanded_tail(smallest, confidence)
    low, high = means.quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64), dim=0).tolist()
    value = torch.stack([table.mean(0) for table in tables]).mean(0).tolist()
    return [Interval(*bounds) for bounds in zip(value, low, high, strict=True)]


def _resampled_means(values: Tensor, num_resamples: int, generator: torch.Generator) -> Tensor:
    """[num_resamples, K] means of resamples of the rows of `values` [Q, K]."""
    questions, means = len(values), []
    for resamples in torch.arange(num_resamples).split(max(1, CHUNK // questions)):
        rows = torch.randint(questions, (len(resamples), questions), generator=generator)
        # How often each question is drawn, then one matrix product for all columns.
        cells = rows + questions * torch.arange(len(resamples))[:, None]
        drawn = torch.bincount(cells.flatten(), minlength=len(resamples) * questions).view(-1, questions)
        means.append(drawn.double() @ values / questions)
    return torch.cat(means)


def expanded_tail(num_values: int, confidence: float) -> float:
    """Share of resamples to cut off at each end: Φ(−√(n / (n − 1)) · t), t the quantile of Student with n − 1.

    >>> round(expanded_tail(1000000, 0.95), 4), round(expanded_tail(10, 0.95), 4)
    (0.025, 0.0086)
    """
    if num_values < 2:
        return (1 - confidence) / 2
    t = float(stats.t.ppf((1 + confidence) / 2, num_values - 1))
    return float(stats.norm.cdf(-t * (num_values / (num_values - 1)) ** 0.5))
