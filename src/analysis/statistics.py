"""Intervals over questions and seeds, paired differences, and what may be said of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

RESAMPLES = 4000


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval."""

    value: float
    low: float
    high: float

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} [{100 * self.low:.1f}, {100 * self.high:.1f}]"


@dataclass(frozen=True)
class Comparison:
    """A paired difference of two methods, with the verdict on it."""

    method: str
    baseline: str
    split: str
    k: int
    difference: Estimate
    p_value: float
    """Two-sided bootstrap p-value, after Holm's correction over all comparisons of the report."""
    seeds: int

    @property
    def verdict(self) -> str:
        """`higher`, `lower` or `undecided` at the 5 % level."""
        if self.p_value >= 0.05 or self.difference.low <= 0 <= self.difference.high:
            return "undecided"
        return "higher" if self.difference.value > 0 else "lower"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "verdict": self.verdict}


def resampled_means(table: np.ndarray, seed: int = 0) -> np.ndarray:
    """Means of `RESAMPLES` two-way resamples: seeds and questions are drawn with replacement, independently.

    Args:
        table: [seeds, questions] values; all seeds on the same questions.
        seed: Of the resampling.

    Returns:
        [RESAMPLES]. With one seed only questions vary.
    """
    rng = np.random.default_rng(seed)
    num_seeds, num_questions = table.shape
    seeds = rng.multinomial(num_seeds, np.full(num_seeds, 1 / num_seeds), RESAMPLES) / num_seeds
    questions = rng.multinomial(num_questions, np.full(num_questions, 1 / num_questions), RESAMPLES) / num_questions
    return np.einsum("bs,sq,bq->b", seeds, table, questions, optimize=True)


def estimate(table: np.ndarray) -> Estimate:
    """Mean of `table` [seeds, questions] with a 95 % percentile interval over questions and seeds."""
    low, high = np.quantile(resampled_means(table), [0.025, 0.975])
    return Estimate(float(table.mean()), float(low), float(high))


def paired_table(series: Sequence[pd.Series]) -> np.ndarray:
    """[seeds, questions] from one series per seed, indexed by question.

    Raises:
        ValueError: the seeds were evaluated on different questions.
    """
    frame = pd.concat(series, axis=1)
    if frame.isna().any().any():
        raise ValueError(
            "Expected all seeds to be evaluated on the same questions, but they are not. Evaluate them on one split."
        )
    return frame.to_numpy().T


def difference(ours: np.ndarray, theirs: np.ndarray) -> tuple[Estimate, float]:
    """Paired difference of two [seeds, questions] tables and its two-sided bootstrap p-value.

    Questions are paired. Seeds are paired where both have as many; otherwise the mean over seeds is compared,
    and only the noise of questions is measured.
    """
    if len(ours) == len(theirs):
        table = ours - theirs
    else:
        table = ours.mean(0, keepdims=True) - theirs.mean(0, keepdims=True)
    means = resampled_means(table)
    low, high = np.quantile(means, [0.025, 0.975])
    tail = min((means <= 0).mean(), (means >= 0).mean())
    return Estimate(float(table.mean()), float(low), float(high)), float(min(1.0, 2 * max(tail, 1 / RESAMPLES)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction for many comparisons.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected
