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


def bootstrap_interval(values: Tensor, confidence: float = 0.95, num_resamples: int = 2000, seed: int = 0) -> Interval:
    """Expanded percentile bootstrap of the mean over questions.

    The quantiles are those that make the interval of a normal mean a t-interval (Hesterberg 2015, arXiv 1411.5279,
    §5.3): the plain percentiles of n values are too close by √((n − 1) / n), and know nothing of Student's t. Bounds
    never leave the range of the values.

    Args:
        values: [Q] float, one per question.
        confidence: Nominal coverage, 0..1.
        num_resamples: Resamples of Q questions with replacement.
        seed: Of the resampling.

    Returns:
        Mean and bounds; all NaN for no questions, bounds equal to the mean for one. With ten questions, or with a value
        that only few of them differ in, it covers up to three points less than it says.

    >>> bootstrap_interval(torch.tensor([0.5, 0.5, 0.5]))
    Interval(value=0.5, low=0.5, high=0.5)
    """
    return bootstrap_intervals(values[:, None], confidence, num_resamples, seed)[0]


def bootstrap_intervals(
    values: Tensor, confidence: float = 0.95, num_resamples: int = 2000, seed: int = 0
) -> list[Interval]:
    """`bootstrap_interval` of each column of `values` [Q, K], from the same resamples.

    >>> bootstrap_intervals(torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
    [Interval(value=0.0, low=0.0, high=0.0), Interval(value=1.0, low=1.0, high=1.0)]
    """
    values = values.double().cpu()
    questions, columns = values.shape
    if not questions:
        return [Interval(torch.nan, torch.nan, torch.nan)] * columns
    generator = torch.Generator().manual_seed(seed)
    means = []
    for resamples in torch.arange(num_resamples).split(max(1, CHUNK // questions)):
        rows = torch.randint(questions, (len(resamples), questions), generator=generator)
        # How often each question is drawn, then one matrix product for all columns.
        cells = rows + questions * torch.arange(len(resamples))[:, None]
        drawn = torch.bincount(cells.flatten(), minlength=len(resamples) * questions).view(-1, questions)
        means.append(drawn.double() @ values / questions)
    tail = expanded_tail(questions, confidence)
    bounds = torch.tensor([tail, 1 - tail], dtype=torch.float64)
    low, high = torch.cat(means).quantile(bounds, dim=0).tolist()
    return [Interval(*bounds) for bounds in zip(values.mean(0).tolist(), low, high, strict=True)]


def expanded_tail(num_values: int, confidence: float) -> float:
    """Share of resamples to cut off at each end: Φ(−√(n / (n − 1)) · t), t the quantile of Student with n − 1.

    >>> round(expanded_tail(1000000, 0.95), 4), round(expanded_tail(10, 0.95), 4)
    (0.025, 0.0086)
    """
    if num_values < 2:
        return (1 - confidence) / 2
    t = float(stats.t.ppf((1 + confidence) / 2, num_values - 1))
    return float(stats.norm.cdf(-t * (num_values / (num_values - 1)) ** 0.5))


def paired_interval(
    values: Tensor, baseline: Tensor, confidence: float = 0.95, num_resamples: int = 2000, seed: int = 0
) -> Interval:
    """Bootstrap interval of the mean difference `values − baseline`, question by question.

    Both runs answered the same questions, so that a question's difficulty cancels; unpaired intervals would be wider.

    Args:
        values: [Q] float, one per question.
        baseline: [Q] float, of the same questions in the same order.
        confidence: Nominal coverage, 0..1.
        num_resamples: Resamples of Q questions with replacement.
        seed: Of the resampling.

    Raises:
        ValueError: the shapes differ.

    >>> paired_interval(torch.tensor([0.5, 1.0]), torch.tensor([0.25, 0.75]))
    Interval(value=0.25, low=0.25, high=0.25)
    """
    if values.shape != baseline.shape:
        raise ValueError(
            f"Expected the same questions on both sides, but got {tuple(values.shape)} and {tuple(baseline.shape)}."
        )
    return bootstrap_interval(values.double() - baseline.double(), confidence, num_resamples, seed)
