"""Intervals over questions and seeds, paired differences, and the verdicts on them.

Values are tables [seeds, questions]: all seeds on the same questions. Seeds and questions are both samples of
a larger population, so both carry noise; with one seed, only the noise of questions is measured. If there are
several tables, one per benchmark, the estimated value is the mean of the tables' means, so that each
benchmark has the same weight. Each table has its own sample of questions, but a seed is the same run in all
tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

RESAMPLES = 4000
LEVEL = 0.05
Tables = pd.DataFrame | Sequence[pd.DataFrame]
"""Table [seeds, questions] of one benchmark, or a sequence of such tables, one per benchmark."""


@dataclass(frozen=True)
class Estimate:
    """Mean with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:.1f} [{100 * self.low:.1f}, {100 * self.high:.1f}]"

    @property
    def signed(self) -> str:
        """Text of the estimate, as a difference in percentage points.

        >>> Estimate(0.021, -0.004, 0.046).signed
        '+2.1 [−0.4, +4.6]'
        """
        numbers = (f"{100 * number:+.1f}".replace("-", "−") for number in (self.value, self.low, self.high))
        return "{} [{}, {}]".format(*numbers)


@dataclass(frozen=True)
class Difference:
    """Paired difference of two methods."""

    estimate: Estimate
    p_value: float
    """Two-sided p-value, not corrected for multiple comparisons."""
    seeds: tuple[int, ...]
    """Seeds that both methods have."""


@dataclass(frozen=True)
class Comparison:
    """Paired difference of two methods, with a verdict."""

    method: str
    baseline: str
    quantity: str
    """Name of the quantity: `pass@k/<split>/<k>` or `zero_gradient/percentage`, both as fractions."""
    difference: Estimate
    p_value: float
    """Two-sided p-value, after Holm's correction over all comparisons that were made together."""
    seeds: tuple[int, ...]
    """Seeds that both methods have."""

    @property
    def verdict(self) -> str:
        """`higher`, `lower` or `undecided` at the 5 % level."""
        if not self.p_value < LEVEL:
            return "undecided"
        return "higher" if self.difference.value > 0 else "lower"


def resampled_means(*tables: np.ndarray) -> np.ndarray:
    """Return bootstrap means of tables [seeds, questions], [RESAMPLES] float64.

    Seeds and questions are resampled independently, with replacement. Of S seeds, S − 1 are drawn: with S
    draws, the variance between seeds would be too small by the factor (S − 1) / S, which matters for two or
    three seeds (Rao and Wu, 1988). With one seed, only questions vary.
    """
    rng = np.random.default_rng(0)
    num_seeds = len(tables[0])
    drawn = max(num_seeds - 1, 1)
    seeds = rng.multinomial(drawn, np.full(num_seeds, 1 / num_seeds), RESAMPLES) / drawn
    means = []
    for table in tables:
        size = table.shape[1]
        questions = rng.multinomial(size, np.full(size, 1 / size), RESAMPLES) / size
        means.append(np.einsum("bq,bq->b", seeds @ table, questions))
    return np.asarray(np.mean(means, axis=0))


def estimate(tables: Tables) -> Estimate:
    """Estimate the mean of tables [seeds, questions], with a 95 % interval over questions and seeds.

    The interval is a percentile interval, so that it stays in [0, 1] if all values are in [0, 1]. If two or
    three seeds differ by much more than the noise of questions explains, the interval contains the true mean
    in about 90 % of cases instead of 95 %.
    """
    values = [table.to_numpy(dtype=float) for table in _several(tables)]
    low, high = np.quantile(resampled_means(*values), [LEVEL / 2, 1 - LEVEL / 2])
    return Estimate(float(np.mean([table.mean() for table in values])), float(low), float(high))


def _several(tables: Tables) -> Sequence[pd.DataFrame]:
    return [tables] if isinstance(tables, pd.DataFrame) else tables


def standard_error(*tables: np.ndarray) -> tuple[float, float]:
    """Return the standard error of the mean of tables [seeds, questions], and its degrees of freedom.

    The squared error is the variance of a mean over independent seeds plus the variance of a mean over
    independent questions: var(seed means) / S + var(question means) / Q. For M tables, the second term is the
    sum over the tables, divided by M². The interaction of seeds and questions is counted in both terms, which
    is conservative. Degrees of freedom follow Welch and Satterthwaite. With one seed, the result is the error
    of the t-test over questions; with one question, the error of the t-test over seeds; with a single value,
    infinity.

    >>> standard_error(np.array([[1.0, 2.0, 3.0]]))  # 1 / √3 with 2 degrees of freedom
    (0.577..., 2.0)
    """
    margins = [
        np.mean([table.mean(1) for table in tables], axis=0),
        *(t.mean(0) / len(tables) for t in tables),
    ]
    variances = [(means.var(ddof=1) / len(means), len(means) - 1) for means in margins if len(means) > 1]
    total = sum(variance for variance, _ in variances)
    if not variances:
        return float("inf"), 1.0
    if total == 0:
        return 0.0, float(sum(freedom for _, freedom in variances))
    return float(np.sqrt(total)), float(
        total**2 / sum(variance**2 / freedom for variance, freedom in variances)
    )


def difference(ours: Tables, theirs: Tables) -> Difference:
    """Return the paired difference of two methods: mean, 95 % t-interval and two-sided p-value.

    A pair is the same question under the same seed; seeds that only one method has are left out. The interval
    is a t-interval, because a bootstrap of two or three seeds is too narrow. If seeds differ much, a 95 %
    interval by bootstrap contains the true difference in 80 to 90 % of cases, and the t-interval in 88 to
    99 % with two seeds and 92 to 99 % with more.

    Raises:
        ValueError: if the methods have no seed in common, or have different questions.
    """
    tables = [_paired(*pair) for pair in zip(_several(ours), _several(theirs), strict=True)]
    values = [table.to_numpy() for table in tables]
    mean, (error, freedom) = float(np.mean([v.mean() for v in values])), standard_error(*values)
    seeds = tuple(tables[0].index)
    if error == 0:
        return Difference(Estimate(mean, mean, mean), float(mean == 0), seeds)
    reach = float(stats.t.ppf(1 - LEVEL / 2, freedom)) * error
    p_value = float(2 * stats.t.sf(abs(mean) / error, freedom))
    return Difference(Estimate(mean, mean - reach, mean + reach), p_value, seeds)


def _paired(ours: pd.DataFrame, theirs: pd.DataFrame) -> pd.DataFrame:
    """Return the differences by common seed and question."""
    seeds = ours.index.intersection(theirs.index)
    if not len(seeds):
        raise ValueError(f"Expected seeds in common, but got {list(ours.index)} and {list(theirs.index)}.")
    if set(ours.columns) != set(theirs.columns):
        odd = sorted(map(str, set(ours.columns) ^ set(theirs.columns)))
        raise ValueError(
            f"Expected both methods on the same questions, but only one has {', '.join(odd[:5])} ({len(odd)} "
            "in all). Evaluate both on the same set."
        )
    return ours.loc[seeds] - theirs.loc[seeds, ours.columns]


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for multiple comparisons by Holm's step-down method.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected
