"""From paired differences to words, by intervals with one error rate for the whole study.

A claim says that an effect e has a sign, and names the smallest effect that counts as one, δ. An interval for e over
the tasks, positive as claimed, is compared with 0 and ±δ:

| word                 | the interval                      |
| -------------------- | --------------------------------- |
| reproduces           | lies above 0 and reaches δ        |
| smaller than claimed | lies between 0 and δ              |
| no effect            | contains 0, lies between −δ and δ |
| opposite             | lies below 0                      |
| undecided            | is any other                      |

A sign is only given to a mean that each task has the sign of. Where one has another, the word is *tasks differ*, and so
where Cochran's Q rejects that tasks are equal and some have 95 % intervals above 0 and others below. Tasks and their
settings have 95 % intervals and no word.

Intervals are t-intervals over seeds. The law is a conjunction: it holds when each of its claims does, so that each is
tested at the level of one; but each of them could call it false, so that they share the level of *opposite*. The
differences of the other claims share theirs (Bonferroni). Noise need not be normal: where its skewness makes large t
likelier, their quantile is raised for it (the first term of Cornish and Fisher's expansion for a t-statistic,
second-hand); and a word must pass a sign-flip test at the same level, where there are enough seeds for it (the smallest
p-value of S numbers is 2^-S) and not over forty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from tagrpo.analysis.statistics import LEVEL, Estimate

ALPHA = 0.05
"""Of normal noise, the probability that the law is said to hold or to be false and is not, or that any other claim has
a false word: half of it each. `power.py` says what it is with skewed noise."""
FLIPPED = 40
"""Numbers whose signs are flipped in all ways, at most."""
OUTLYING = 0.01
"""Level of the test for a seed that stands out."""
SIGNED = ("reproduces", "smaller than claimed", "opposite")
"""Words that give an effect a sign."""
Word = Literal["reproduces", "smaller than claimed", "no effect", "opposite", "undecided", "tasks differ"]


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """The claim on a difference: ours − theirs."""

    smallest: float
    """δ > 0, the smallest effect that counts as one."""
    sign: int = 1
    """Of the claimed difference."""
    law: bool = False
    """Whether it is one of those that the law needs all of."""


Tables = Mapping[str, Mapping[str, pd.DataFrame]]
"""label → setting → [seeds, questions] of ours − theirs. Settings are called `<task>/<regime>`."""


class Moments(NamedTuple):
    """A mean over tasks with its error."""

    mean: float
    error: float
    """Standard error of the mean."""
    freedom: float
    """Degrees of freedom of the error, after Welch and Satterthwaite."""
    third: float
    """Third central moment of the mean, of the noise of seeds."""
    shares: np.ndarray
    """[seeds of all tasks] weight × mean of each seed; they add up to the mean."""
    weights: np.ndarray
    """[seeds of all tasks], adding up to 1."""

    def interval(self, level: float) -> tuple[float, float]:
        """The t-interval that misses the true mean on either side with probability `level`."""
        reach = stats.t.isf(level, self.freedom) * self.error
        return self.mean - reach, self.mean + reach

    def passes(self, side: int, bound: float, level: float) -> bool:
        """Whether the mean lies above (`side` 1) or below (−1) a bound, by all tests."""
        quantile, skew = stats.t.isf(level, self.freedom), side * self.third / self.error**3
        if (
            not side * (self.mean - bound) / self.error
            > quantile - min(0.0, skew) * (2 * quantile**2 + 1) / 6
        ):
            return False
        flipped = 2.0 ** -len(self.weights) <= level and len(self.weights) <= FLIPPED
        return not flipped or flips(side * (self.shares - bound * self.weights)) <= level


def by_task(by_setting: Mapping[str, pd.DataFrame]) -> dict[str, dict[str, pd.DataFrame]]:
    """Task → its settings, of settings that are called `<task>/<regime>`."""
    tasks: dict[str, dict[str, pd.DataFrame]] = {}
    for setting, table in by_setting.items():
        tasks.setdefault(setting.partition("/")[0], {})[setting] = table
    return tasks


def moments_of(by_setting: Mapping[str, pd.DataFrame]) -> Moments:
    """Of the mean over tasks, each the mean over its regimes, each a table [seeds, questions].

    Seeds and questions are both samples of a larger population. The regimes of a task share the starters of its seeds,
    so that they are averaged seed by seed, over the seeds that all of them have; their questions are independent, and
    so are tasks. The variance of a task is var(seeds' means) / S + Σ over regimes var(questions' means) / Q / regimes².
    The interaction of seeds and questions is counted in both terms, which errs on the safe side.
    """
    tasks = by_task(by_setting)
    variances: list[tuple[float, int]] = []
    shares, weights, third = [], [], 0.0
    for regimes in tasks.values():
        shared = sorted(set.intersection(*(set(table.index) for table in regimes.values())))
        tables = [table.loc[shared].to_numpy(dtype=float) for table in regimes.values()]
        seeds = np.mean([table.mean(1) for table in tables], axis=0)
        for means, parts in [(seeds, 1)] + [(table.mean(0), len(tables)) for table in tables]:
            if (count := len(means)) > 1:
                variances.append((means.var(ddof=1) / count / (parts * len(tasks)) ** 2, count - 1))
        weight = 1 / len(tasks) / len(seeds)
        shares.append(weight * seeds)
        weights.append(np.full(len(seeds), weight))
        third += stats.kstat(seeds, 3) * weight**2 / len(tasks) if len(seeds) > 2 else 0.0
    joined = np.concatenate(shares)
    total = np.sum([variance for variance, _ in variances])
    squares = np.sum([variance**2 / freedom for variance, freedom in variances])
    freedom = total**2 / squares if squares > 0 else 1.0
    return Moments(joined.sum(), np.sqrt(total), freedom, third, joined, np.concatenate(weights))


def estimate_of(found: Moments, level: float = LEVEL / 2) -> Estimate:
    """The mean with its interval, by default of 95 %."""
    low, high = found.interval(level)
    return Estimate(float(found.mean), float(low), float(high))


def flips(shares: np.ndarray) -> float:
    """Sign-flip test of the hypothesis that the sum's expectation is at most 0, of independent symmetric numbers.

    Differences between the expectations of the numbers count as noise, which errs on the safe side.

    The p-value is the share of the 2^S patterns of signs whose sum is at least that of `shares` [S], found by sorting
    the sums of one half of them.

    >>> flips(np.array([1.0, 2.0, 3.0]))
    0.125
    """
    least = shares.sum() - 1e-9 * np.abs(shares).sum()
    halves = []
    for part in np.array_split(shares, 2):
        sums = np.zeros(1)
        for number in part:
            sums = np.concatenate([sums - number, sums + number])
        halves.append(sums)
    one, other = np.sort(halves[0]), halves[1]
    reached = len(one) - np.searchsorted(one, least - other)
    return float(reached.sum() / 2 ** len(shares))


def word_of(claim: Hypothesis, found: Moments, level: float, against: float) -> Word:
    """By the rules of this module, of all tasks together; `level` is that of a bound, `against` that of *opposite*."""
    side, smallest = claim.sign, claim.sign * claim.smallest
    small = found.passes(-side, smallest, level)
    if found.passes(side, 0.0, level):
        return "smaller than claimed" if small else "reproduces"
    if found.passes(-side, 0.0, against):
        return "opposite"
    return "no effect" if small and found.passes(side, -smallest, level) else "undecided"


@dataclass(frozen=True)
class Heterogeneity:
    """How much tasks differ beyond noise."""

    q: float
    """Cochran's Q: Σ (effect − weighted mean)² / error² over tasks."""
    p: float
    """That it is as large without a difference; Welch's correction (1951) for errors that are estimated."""


def heterogeneity(tasks: Sequence[Moments]) -> Heterogeneity | None:
    """Of the effects of some tasks; None of fewer than two, or where one has no noise."""
    effects, errors, freedoms = (
        np.array([getattr(one, name) for one in tasks], dtype=float) for name in ("mean", "error", "freedom")
    )
    count = len(effects)
    if count < 2 or not (errors > 0).all():
        return None
    weights = errors**-2 / (errors**-2).sum()
    q = float((((effects - weights @ effects) / errors) ** 2).sum())
    doubt = float(((1 - weights) ** 2 / freedoms).sum())
    ratio = q / (count - 1) / (1 + 2 * (count - 2) / (count**2 - 1) * doubt)
    return Heterogeneity(q, float(stats.f.sf(ratio, count - 1, (count**2 - 1) / 3 / doubt)))


def stands_out(seeds: np.ndarray) -> bool:
    """Whether one of [S] numbers is too far from the others for normal noise: Grubbs' test."""
    count, spread = len(seeds), seeds.std(ddof=1) if len(seeds) > 2 else 0.0
    if spread == 0:
        return False
    t = stats.t.isf(OUTLYING / (2 * count), count - 2) ** 2
    farthest = np.abs(seeds - seeds.mean()).max() / spread
    return bool(farthest > (count - 1) / np.sqrt(count) * np.sqrt(t / (count - 2 + t)))


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One difference, and the word on it."""

    label: str
    tasks: Mapping[str, Estimate]
    """Of each task, with its 95 % interval, not corrected."""
    estimate: Estimate
    """Ours − theirs over all tasks, in the same way."""
    corrected: Estimate
    """With the t-interval at the level of the word; of the law, *opposite* has a stricter one."""
    word: Word
    seeds: int
    """Numbers of seeds, of all tasks."""
    outlying: Sequence[str]
    """Settings with a seed that stands out, so that their noise is not normal."""
    heterogeneity: Heterogeneity | None
    """Of the tasks."""


def findings_of(claims: Sequence[tuple[Hypothesis, Tables]]) -> list[list[Finding]]:
    """Of each claim, the findings on its differences that have settings."""
    counts = {
        law: sum(sum(map(bool, of.values())) for claim, of in claims if claim.law == law)
        for law in (True, False)
    }

    def finding(claim: Hypothesis, label: str, by_setting: Mapping[str, pd.DataFrame]) -> Finding:
        against = ALPHA / 4 / counts[claim.law]
        return _finding(claim, label, by_setting, ALPHA / 4 if claim.law else against, against)

    return [[finding(claim, label, of) for label, of in tables.items() if of] for claim, tables in claims]


def _finding(
    claim: Hypothesis, label: str, by_setting: Mapping[str, pd.DataFrame], level: float, against: float
) -> Finding:
    of_task = {task: moments_of(settings) for task, settings in by_task(by_setting).items()}
    found, tasks = moments_of(by_setting), {name: estimate_of(of) for name, of in of_task.items()}
    differ, word = heterogeneity(list(of_task.values())), word_of(claim, found, level, against)
    signs = {np.sign(of.value) for of in tasks.values()}
    both = any(of.low > 0 for of in tasks.values()) and any(of.high < 0 for of in tasks.values())
    if (len(signs) > 1 and word in SIGNED) or (differ and differ.p < ALPHA and both):
        word = "tasks differ"
    return Finding(
        label=label,
        tasks=tasks,
        estimate=estimate_of(found),
        corrected=estimate_of(found, level),
        word=word,
        seeds=len(found.weights),
        outlying=[name for name, table in by_setting.items() if stands_out(table.mean(axis=1).to_numpy())],
        heterogeneity=differ,
    )


def conjunction(words: Sequence[Word]) -> Word:
    """The word on a law that needs all of its claims: the first of these that one of them has.

    | word                 | what it means                                                |
    | -------------------- | ------------------------------------------------------------ |
    | opposite             | the law is false                                             |
    | tasks differ         | a part of it has another sign in one of the tasks            |
    | no effect            | it does not hold: a part of it is smaller than counts        |
    | undecided            | the study is too small                                       |
    | smaller than claimed | it holds, but in a part by less than it says                 |
    | reproduces           | it holds                                                     |
    """
    order: Sequence[Word] = (
        "opposite", "tasks differ", "no effect", "undecided", "smaller than claimed", "reproduces",
    )  # fmt: skip
    return next(word for word in order if word in words)
