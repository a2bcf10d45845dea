"""From paired differences to words, by intervals that hold for all differences of the study at once.

A claim says that an effect e has a sign, and names the smallest effect that counts as one, δ. In every setting (a task
in one of its regimes), and over all settings, an interval for e, positive as claimed, is compared with 0 and ±δ:

| word                 | the interval                      | claims that something adds *little*   |
| -------------------- | --------------------------------- | ------------------------------------- |
| reproduces           | lies above 0 and reaches δ        | lies between −δ and δ                 |
| smaller than claimed | lies between 0 and δ              | –                                     |
| larger than claimed  | –                                 | lies above δ                          |
| no effect            | contains 0, lies between −δ and δ | –                                     |
| opposite             | lies below 0                      | lies below 0 and reaches −δ           |
| undecided            | is any other                      | is any other                          |

Intervals are t-intervals, so wide that in 95 of 100 studies all of them contain their true effects (Bonferroni): those
over all settings share one half of the 5 %, those of single settings the other. A quantity with one number per seed
must also pass an exact sign-flip test at the same level, which does not need normal noise, where there are enough seeds
for it: the smallest p-value of S seeds is 2^-S, so that the ten of a single task cannot, and rest on the t-test alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from tagrpo.analysis.statistics import LEVEL, Estimate

ALPHA = 0.05
"""Probability of any false word in the study."""
FAMILIES = 2
"""Single settings, and all of them together."""
EXACT, DRAWN = 36, 50_000
"""Numbers whose signs are flipped in all ways; and patterns of signs that are drawn of more."""
OUTLYING = 0.01
"""Level of the test for a seed that stands out."""
OVERALL = "all"
Word = Literal["reproduces", "smaller than claimed", "larger than claimed", "no effect", "opposite", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """The claim on a difference: ours − theirs."""

    smallest: float
    """δ > 0, the smallest effect that counts as one."""
    sign: int = 1
    """Of the claimed difference."""
    little: bool = False
    """Whether the claim is that the effect is smaller than δ."""


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


@dataclass(frozen=True)
class Outcome:
    """The word on one difference."""

    word: Word
    below: bool
    """Whether an effect as large as claimed is excluded."""


def outcome_of(claim: Hypothesis, found: Moments, level: float, scalar: bool) -> Outcome:
    """By the rules of this module.

    Args:
        claim: With its direction.
        found: Of the differences ours − theirs.
        level: Of each bound, one-sided.
        scalar: Whether there is one number per seed.
    """
    flipped = scalar and 2.0 ** -len(found.weights) <= level
    low, high = sorted(claim.sign * float(bound) for bound in found.interval(level))
    shares = claim.sign * found.shares

    def above(bound: float) -> bool:
        return low > bound and (not flipped or flips(shares - bound * found.weights) <= level)

    def below(bound: float) -> bool:
        return high < bound and (not flipped or flips(bound * found.weights - shares) <= level)

    small = below(claim.smallest)
    word: Word = "undecided"
    if claim.little:
        if small and above(-claim.smallest):
            word = "reproduces"
        elif above(claim.smallest):
            word = "larger than claimed"
        elif below(0.0):
            word = "opposite"
    elif above(0.0):
        word = "smaller than claimed" if small else "reproduces"
    elif below(0.0):
        word = "opposite"
    elif small and above(-claim.smallest):
        word = "no effect"
    return Outcome(word, small)


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
    """One difference in one setting, or over all of them, and the word on it."""

    setting: str
    label: str
    estimate: Estimate
    """Ours − theirs with its 95 % interval, not corrected."""
    corrected: Estimate
    """With the interval that the word is taken from."""
    outcome: Outcome
    seeds: int
    """Numbers of seeds, of all tasks."""
    outlying: bool
    """Whether a seed stands out in one of its tables, so that its noise is not normal."""
    heterogeneity: Heterogeneity | None = None
    """Of the settings, in a finding over all of them."""

    @property
    def word(self) -> Word:
        """Of the outcome."""
        return self.outcome.word


def findings_of(claims: Sequence[tuple[Hypothesis, Tables]]) -> list[list[Finding]]:
    """The findings on each claim: of each difference in every setting, then over all; corrected over all claims."""
    levels = levels_of(claims)
    return [list(_findings(claim, tables, levels)) for claim, tables in claims]


def levels_of(claims: Sequence[tuple[Hypothesis, Tables]]) -> tuple[float, float]:
    """One-sided levels of a bound over all settings, and of one in a single setting."""
    tested = [by_setting for _, tables in claims for by_setting in tables.values() if by_setting]
    counts = (len(tested), sum(map(len, tested)))
    overall, single = (ALPHA / FAMILIES / 2 / max(count, 1) for count in counts)
    return overall, single


def is_scalar(by_setting: Mapping[str, pd.DataFrame]) -> bool:
    """Whether there is one number per seed."""
    return all(table.shape[1] == 1 for table in by_setting.values())


def _findings(claim: Hypothesis, tables: Tables, levels: tuple[float, float]) -> Iterator[Finding]:
    for label, by_setting in tables.items():
        single = {setting: moments_of({setting: table}) for setting, table in by_setting.items()}
        odd = {setting: stands_out(found.shares) for setting, found in single.items()}
        whole = {OVERALL: moments_of(by_setting)} if by_setting else {}
        for setting, found in (single | whole).items():
            overall = setting == OVERALL
            level = levels[0] if overall else levels[1]
            yield Finding(
                setting=setting,
                label=label,
                estimate=estimate_of(found),
                corrected=estimate_of(found, level),
                outcome=outcome_of(claim, found, level, is_scalar(by_setting)),
                seeds=len(found.weights),
                outlying=any(odd.values()) if overall else odd[setting],
                heterogeneity=heterogeneity(list(single.values())) if overall else None,
            )


def together(words: Sequence[str]) -> str:
    """The word on a claim of several differences: theirs, where all have the same; else each, in their order.

    A claim reproduces only when all of its differences do, and no word stands for one that has another.
    """
    return "; ".join(words if len(set(words)) > 1 else words[:1])
