"""The effects that the page prints beside the planned claims. None was planned, and no word rests on one.

Each is a `Pair` of `claims.py`: from the table of runs to `<task>/<setting>` → [seeds, 1]. `over_tasks` of the result
has the effect in every task, and its mean unless the tasks' signs differ beyond noise.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pandas as pd
from scipy import stats

from .claims import CLAIMS, LAW, OURS, THEIRS, Claim, Differences, Pair, between, rise
from .design import GAPS, UNTRAINED
from .verdicts import ALPHA, moments_of

LEAST: Mapping[str, Any] = {"branches": GAPS[:1]}
"""Where reformulations are no easier than the question, or harder."""
LARGEST: Mapping[str, Any] = {"branches": GAPS[-1:]}
"""Where reformulations are easiest."""
POINTS: Mapping[str, str] = {"end": "end", "best32": "best validation"}
"""Point of a run → its name on the page. `best32` is where pass@32 in validation was highest."""


def minus(one: Pair, other: Pair) -> Pair:
    """Subtract `other` from `one`, setting by setting and seed by seed."""

    def difference(runs: pd.DataFrame) -> Differences:
        theirs = other(runs)
        return {setting: table - theirs[setting] for setting, table in one(runs).items()}

    return difference


def without(pair: Pair, task: str) -> Pair:
    """Leave one task out."""

    def others(runs: pd.DataFrame) -> Differences:
        return {setting: table for setting, table in pair(runs).items() if not setting.startswith(f"{task}/")}

    return others


def span(ours: str, theirs: str, k: int, *, point: str = "end") -> Pair:
    """Compute ours − theirs at the largest gap minus ours − theirs at the least, ignoring the gaps between them."""

    def difference(runs: pd.DataFrame) -> Differences:
        largest = between(ours, theirs, k, point=point, **LARGEST)(runs)
        least = between(ours, theirs, k, point=point, **LEAST)(runs)
        tasks = [setting.partition("/")[0] for setting in largest]
        return {f"{task}/span": largest[f"{task}/{GAPS[-1]}"] - least[f"{task}/{GAPS[0]}"] for task in tasks}

    return difference


def interaction(pair: Callable[..., Pair], k: int, **rest: Any) -> Pair:
    """Compute TA-GRPO − pooled − anchored + exposure: what pooling and anchoring gain together beyond their sum."""
    return minus(pair(OURS, "pooled", k, **rest), pair("anchored", "exposure", k, **rest))


def over_untrained(arm: str, k: int, point: str) -> Pair:
    """Compute the gain of an arm over the untrained policy, averaged over gaps."""
    return between(arm, UNTRAINED, k, point=point)


LEADS: Mapping[str, Pair] = {
    "rise": rise(OURS, THEIRS, 32),
    "rise without `shortest_path`": without(rise(OURS, THEIRS, 32), "shortest_path"),
    "rise, best validation": rise(OURS, THEIRS, 32, point="best32"),
    "least gap": between(OURS, THEIRS, 32, **LEAST),
    "least gap, best validation": between(OURS, THEIRS, 32, point="best32", **LEAST),
    "largest gap": between(OURS, THEIRS, 32, **LARGEST),
    "largest gap, best validation": between(OURS, THEIRS, 32, point="best32", **LARGEST),
    "largest gap, pass@1": between(OURS, THEIRS, 1, **LARGEST),
}
"""TA-GRPO − GRPO with as many samples, in pass@32 and at the end of training unless the name says otherwise."""
INTERACTIONS: Mapping[str, Pair] = {
    "rise": interaction(rise, 32),
    "largest gap − least gap alone": interaction(span, 32),
    "rise without the least gap": interaction(rise, 32, gaps=GAPS[1:]),
    "rise without `shortest_path`": without(interaction(rise, 32), "shortest_path"),
    "rise, best validation": interaction(rise, 32, point="best32"),
    "largest gap − least gap alone, best validation": interaction(span, 32, point="best32"),
    "rise, unseen wording": interaction(rise, 32, wording="unseen"),
    "least gap": interaction(between, 32, **LEAST),
    "largest gap": interaction(between, 32, **LARGEST),
}
"""TA-GRPO − pooled − anchored + exposure, as in `LEADS`."""


def level_of(claim: Claim) -> float:
    """Return the one-sided level at which the plan tests a bound of a claim's differences."""
    others = sum(len(each.pairs) for each in CLAIMS if not each.law)
    return ALPHA / 4 if claim.law else ALPHA / 4 / others


def excluded(claim: Claim, label: str, runs: pd.DataFrame) -> bool:
    """Return whether the plan's tests exclude that a difference is as large as claimed."""
    found = moments_of(claim.tables(runs)[label])
    return found.passes(-claim.sign, claim.sign * claim.smallest, level_of(claim))


def missed(runs: pd.DataFrame) -> Iterator[tuple[int, float, float]]:
    """Yield (claim's number, p-value, level) of each difference of the law that is not shown to have its sign.

    The p-value is that of the one-sided t-test, without the plan's correction for skewness.
    """
    for number, claim in enumerate(LAW, 1):
        for tables in claim.tables(runs).values():
            found = moments_of(tables)
            if not found.passes(claim.sign, 0.0, level_of(claim)):
                p = stats.t.sf(claim.sign * found.mean / found.error, found.freedom)
                yield number, float(p), level_of(claim)
