"""From paired differences to words, by intervals with one error rate for the whole study.

A claim says that an effect e has a sign, and names the smallest effect that counts as one, δ. An interval for e over
all settings (a task at one or more of its branches), positive as claimed, is compared with 0 and ±δ:

| word                 | the interval                      |
| -------------------- | --------------------------------- |
| reproduces           | lies above 0 and reaches δ        |
| smaller than claimed | lies between 0 and δ              |
| no effect            | contains 0, lies between −δ and δ |
| opposite             | lies below 0                      |
| undecided            | is any other                      |

No word is given to a mean over settings that contradict each other: *settings differ* where Cochran's Q rejects that
they are equal and some have 95 % intervals above 0 and others below. Single settings have 95 % intervals and no word.

Intervals are t-intervals over seeds. The law is a conjunction: it holds when each of its claims does, so that each is
tested at the level of one; the differences of the other claims share theirs (Bonferroni). A word must also pass a
sign-flip test at the same level, which does not need normal noise, where there are enough seeds for it: the smallest
p-value of S numbers is 2^-S.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from tagrpo.analysis.statistics import LEVEL, Estimate

ALPHA = 0.05
"""Probability that the law is said to hold and does not, or that any other claim has a false word: half of it each."""
EXACT, DRAWN = 36, 50_000
"""Numbers whose signs are flipped in all ways; and patterns of signs that are drawn of more."""
OUTLYING = 0.01
"""Level of the test for a seed that stands out."""
Word = Literal["reproduces", "smaller than claimed", "no effect", "opposite", "undecided", "settings differ"]


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
    """A mean over tasks with its error; fields may have leading dimensions of independent draws."""

    mean: np.ndarray
    error: np.ndarray
    """Standard error of the mean."""
    freedom: np.ndarray
    """Degrees of freedom of the error, after Welch and Satterthwaite."""
    shares: np.ndarray
    """[..., seeds of all tasks] weight × mean of each seed; they add up to the mean."""
    weights: np.ndarray
    """[seeds of all tasks], adding up to 1."""

    def interval(self, level: float) -> tuple[np.ndarray, np.ndarray]:
        """The t-interval that misses the true mean on either side with probability `level`."""
        reach = stats.t.isf(level, self.freedom) * self.error
        return self.mean - reach, self.mean + reach


def moments(tasks: Sequence[Sequence[np.ndarray]]) -> Moments:
    """Of the mean over tasks, each the mean over its regimes, each a table [..., seeds, questions].

    Seeds and questions are both samples of a larger population. The regimes of a task share the starters of its seeds,
    so that they are averaged seed by seed; their questions are independent, and so are tasks. The variance of a task
    is var(seeds' means) / S + Σ over regimes var(questions' means) / Q / regimes². The interaction of seeds and
    questions is counted in both terms, which errs on the safe side.
    """
    variances: list[tuple[np.ndarray, int]] = []
    shares, weights = [], []
    for regimes in tasks:
        seeds = np.mean([table.mean(-1) for table in regimes], axis=0)
        found = [(seeds, 1)] + [(table.mean(-2), len(regimes)) for table in regimes]
        for means, parts in found:
            if (count := means.shape[-1]) > 1:
                variances.append((means.var(-1, ddof=1) / count / (parts * len(tasks)) ** 2, count - 1))
        weight = 1 / len(tasks) / seeds.shape[-1]
        shares.append(weight * seeds)
        weights.append(np.full(seeds.shape[-1], weight))
    joined = np.concatenate(shares, axis=-1)
    total = np.sum([variance for variance, _ in variances], axis=0)
    squares = np.sum([variance**2 / freedom for variance, freedom in variances], axis=0)
    freedom = np.divide(total**2, squares, out=np.ones_like(squares), where=squares > 0)
    return Moments(joined.sum(-1), np.sqrt(total), freedom, joined, np.concatenate(weights))


def moments_of(by_setting: Mapping[str, pd.DataFrame]) -> Moments:
    """`moments` of some settings; of each task, the seeds that all its regimes have."""
    tasks: dict[str, list[pd.DataFrame]] = {}
    for setting, table in by_setting.items():
        tasks.setdefault(setting.partition("/")[0], []).append(table)
    shared = {task: sorted(set.intersection(*(set(table.index) for table in of))) for task, of in tasks.items()}
    return moments([[table.loc[shared[task]].to_numpy(dtype=float) for table in of] for task, of in tasks.items()])


def estimate_of(found: Moments, level: float = LEVEL / 2) -> Estimate:
    """The mean with its interval, by default of 95 %."""
    low, high = found.interval(level)
    return Estimate(float(found.mean), float(low), float(high))


def flips(shares: np.ndarray) -> float:
    """Sign-flip test of the hypothesis that the sum's expectation is at most 0, of independent symmetric numbers.

    Differences between the expectations of the numbers count as noise, which errs on the safe side.

    The p-value is the share of the 2^S patterns of signs whose sum is at least that of `shares` [S]. Up to `EXACT`
    numbers it is exact, found by sorting the sums of one half of them; of more, `DRAWN` patterns are drawn, always the
    same, beside the one observed.

    >>> flips(np.array([1.0, 2.0, 3.0]))
    0.125
    """
    least = shares.sum() - 1e-9 * np.abs(shares).sum()
    if len(shares) > EXACT:
        return float((1 + (_signs(len(shares)) @ shares >= least).sum()) / (1 + DRAWN))
    halves = []
    for part in np.array_split(shares, 2):
        sums = np.zeros(1)
        for number in part:
            sums = np.concatenate([sums - number, sums + number])
        halves.append(sums)
    one, other = np.sort(halves[0]), halves[1]
    reached = len(one) - np.searchsorted(one, least - other)
    return float(reached.sum() / 2 ** len(shares))


@cache
def _signs(count: int) -> np.ndarray:
    """[DRAWN, count] of ±1."""
    return np.random.default_rng(0).choice(np.array([-1.0, 1.0], dtype=np.float32), (DRAWN, count))


def word_of(claim: Hypothesis, found: Moments, level: float) -> Word:
    """By the rules of this module, without that of settings which differ; `level` is that of each bound, one-sided."""
    flipped = 2.0 ** -len(found.weights) <= level
    low, high = sorted(claim.sign * float(bound) for bound in found.interval(level))
    shares = claim.sign * found.shares

    def above(bound: float) -> bool:
        return low > bound and (not flipped or flips(shares - bound * found.weights) <= level)

    def below(bound: float) -> bool:
        return high < bound and (not flipped or flips(bound * found.weights - shares) <= level)

    if above(0.0):
        return "smaller than claimed" if below(claim.smallest) else "reproduces"
    if below(0.0):
        return "opposite"
    return "no effect" if below(claim.smallest) and above(-claim.smallest) else "undecided"


@dataclass(frozen=True)
class Heterogeneity:
    """How much settings differ beyond noise."""

    q: float
    """Cochran's Q: Σ (effect − weighted mean)² / error² over settings."""
    p: float
    """That it is as large without a difference; Welch's correction (1951) for errors that are estimated."""


def heterogeneity(settings: Sequence[Moments]) -> Heterogeneity | None:
    """Of the effects of some settings; None of fewer than two, or where one has no noise."""
    effects, errors, freedoms = (
        np.array([getattr(one, name) for one in settings], dtype=float) for name in ("mean", "error", "freedom")
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
    settings: Mapping[str, Estimate]
    """Of each setting, with its 95 % interval, not corrected."""
    estimate: Estimate
    """Ours − theirs over all settings, in the same way."""
    corrected: Estimate
    """With the interval that the word is taken from."""
    word: Word
    seeds: int
    """Numbers of seeds, of all tasks."""
    outlying: Sequence[str]
    """Settings with a seed that stands out, so that their noise is not normal."""
    heterogeneity: Heterogeneity | None
    """Of the settings."""


def findings_of(claims: Sequence[tuple[Hypothesis, Tables]]) -> list[list[Finding]]:
    """Of each claim, the findings on its differences that have settings."""
    others = sum(bool(by_setting) for claim, tables in claims if not claim.law for by_setting in tables.values())
    return [
        [_finding(claim, label, of, ALPHA / 4 / (1 if claim.law else others)) for label, of in tables.items() if of]
        for claim, tables in claims
    ]


def _finding(claim: Hypothesis, label: str, by_setting: Mapping[str, pd.DataFrame], level: float) -> Finding:
    single, found = {name: moments_of({name: table}) for name, table in by_setting.items()}, moments_of(by_setting)
    settings, differ = {name: estimate_of(of) for name, of in single.items()}, heterogeneity(list(single.values()))
    both = any(of.low > 0 for of in settings.values()) and any(of.high < 0 for of in settings.values())
    return Finding(
        label=label,
        settings=settings,
        estimate=estimate_of(found),
        corrected=estimate_of(found, level),
        word="settings differ" if differ and differ.p < ALPHA and both else word_of(claim, found, level),
        seeds=len(found.weights),
        outlying=[name for name, of in single.items() if stands_out(of.shares)],
        heterogeneity=differ,
    )


def together(words: Sequence[Word]) -> str:
    """The word on a claim of several differences: theirs, where all have the same; else each, in their order."""
    return "; ".join(words if len(set(words)) > 1 else words[:1])


def conjunction(words: Sequence[Word]) -> Word:
    """The word on a law that needs all of its claims.

    | word                 | those of its claims                             |
    | -------------------- | ----------------------------------------------- |
    | opposite             | one is opposite, or no effect: the law is false |
    | settings differ      | none of these, but one in which settings differ |
    | undecided            | none of these, but one undecided                |
    | smaller than claimed | some are smaller than claimed, others reproduce |
    | reproduces           | all reproduce                                   |
    """
    order: Sequence[Word] = ("settings differ", "undecided", "smaller than claimed", "reproduces")
    return "opposite" if {"opposite", "no effect"} & set(words) else next(word for word in order if word in words)
