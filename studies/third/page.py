"""The page of the study with its pictures: `python -m studies.third.page` writes docs/study.md from the table of runs.

What a word depends on is in `claims.py` and `verdicts.py`, which the plan froze; nothing here changes one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from tagrpo.analysis.plots import finished, looks, panels, save, styled
from tagrpo.analysis.sections import table
from tagrpo.analysis.statistics import LEVEL, Estimate
from tagrpo.runs.files import write_text

from .claims import CLAIMS, OURS, THEIRS, WORDINGS, _difference, chosen, judged
from .design import ARMS, GAPS, KINDS, RECIPES, UNTRAINED
from .predicted import KS
from .results import RUN
from .verdicts import Finding, Word, estimate_of, moments_of

HERE = Path(__file__).resolve().parent
RUNS, PREDICTED = HERE / "runs.csv.gz", HERE / "predicted.csv.gz"
TEXT = HERE / "page.md"
"""Texts around the tables of the page."""
PAGE = HERE.parents[1] / "docs" / "study.md"
RIVALS = (THEIRS, "pooled", "anchored")
"""What the law compares TA-GRPO with."""
LAW_WORDS: Mapping[Word, str] = {
    "opposite": "is false",
    "tasks differ": "does not hold: a part of it has another sign in one of the tasks",
    "no effect": "does not hold: a part of it is smaller than counts",
    "undecided": "is undecided: ten seeds are too few",
    "smaller than claimed": "holds, in a part by less than it says",
    "reproduces": "holds, on the mean of these three tasks, with the same sign in each",
}
"""Word on claims 1 to 3 → what the plan says of the law."""


def difference(runs: pd.DataFrame, ours: str, theirs: str, k: int, kind: str = "wording") -> pd.Series:
    """(Task, branch, seed) → pass@k of ours − theirs at the end; `<arm>@expected` is an arm without sampling noise."""
    return _difference(runs, ours, theirs, k, "original", kind, "end")


def mean_of(values: pd.Series) -> Estimate:
    """Of one number per seed, with its 95 % t-interval."""
    return estimate_of(moments_of({"one": values.to_frame()}))


def by_gap(runs: pd.DataFrame, task: str, ours: str, theirs: str, k: int) -> list[Estimate]:
    """Pass@k of ours − theirs at each of `GAPS`."""
    found = difference(runs, ours, theirs, k)
    return [mean_of(found[task, gap]) for gap in GAPS]


def over_tasks(runs: pd.DataFrame, arm: str, kind: str) -> Estimate:
    """What an arm gains in pass@32 over as many samples in the policy `kinds`, the mean over tasks."""
    found = difference(runs, arm, THEIRS, 32, kind)
    return estimate_of(moments_of({f"{task}/kinds": found[task, "kinds"].to_frame() for task in RECIPES}))


def gaps_of(runs: pd.DataFrame) -> pd.Series:
    """(Task, branch, kind) → gap of the untrained policy, its mean over seeds."""
    starts = runs[(runs["arm"] == UNTRAINED) & (runs["wording"] == "original")]
    return starts.groupby(["task", "branch", "kind"])["gap"].mean()


@styled
def draw(runs: pd.DataFrame, ks: Sequence[int], pairs: Mapping[str, tuple[str, str]], label: str) -> Figure:
    """Pass@k of ours − theirs by the gap, with 95 % intervals: a row of panels for each k, a column for each task.

    `pairs`: label of a line → ours, theirs; `label` is that of the vertical axis.
    """
    gaps, look = 100 * gaps_of(runs), looks(pairs)
    figure, axes = panels(len(ks) * len(RECIPES), abreast=len(RECIPES))
    for axis, (k, task) in zip(axes, product(ks, RECIPES), strict=True):
        x = gaps[task].loc[list(GAPS), "wording"].to_numpy()
        aside = (np.arange(len(pairs)) - len(pairs) // 2) * np.ptp(x) / 150
        for (name, pair), by in zip(pairs.items(), aside, strict=True):
            of = by_gap(runs, task, *pair, k)
            value, low, high = (100 * np.array([getattr(each, at) for each in of]) for at in ("value", "low", "high"))
            axis.errorbar(x + by, value, [value - low, high - value], label=name, elinewidth=0.9, **look[name])
        axis.axhline(0, color="0.3", linewidth=0.8, zorder=0)
        axis.set(title=f"{task}, pass@{k}", xlabel="gap: reformulations − originals, points")
    return finished(figure, axes, label)


def pictures(runs: pd.DataFrame) -> dict[str, Figure]:
    """Name → picture: gains of all arms over the untrained policy, and those of TA-GRPO over its rivals."""
    rivals = {f"TA-GRPO − {rival}": (OURS, rival) for rival in RIVALS}
    return {
        "gains": draw(runs, KS, {arm: (arm, UNTRAINED) for arm in ARMS}, "gain over the untrained policy, points"),
        "dose": draw(runs, KS[1:], rivals, "pass@32, points"),
    }


def claims_table(findings: Sequence[Sequence[Finding]]) -> Iterator[str]:
    """One row for each claim."""
    rows = []
    for number, (claim, found) in enumerate(zip(CLAIMS, findings, strict=True), 1):
        effects = ["; ".join(each) for each in zip(*map(_effects, found), strict=True)]
        words = list(dict.fromkeys(each.word for each in found))
        words = words if len(words) == 1 else [each.word for each in found]
        delta = f"{100 * claim.sign * claim.smallest:+g}".replace("-", "−")
        told = "; ".join(f"**{word}**" for word in words)
        rows.append([str(number), claim.statement, claim.source, *effects, delta, told])
    yield from table(["", "claim", "source", "effect", *RECIPES, "δ", "word"], rows)


def _effects(found: Finding) -> list[str]:
    mark = " †" if found.outlying else ""
    return [found.estimate.signed + mark, *(points(found.tasks[task].value) for task in RECIPES)]


def points(value: float) -> str:
    """A difference in points.

    >>> points(-0.0123)
    '−1.2'
    """
    return f"{100 * value:+.1f}".replace("-", "−")


def per_gap(runs: pd.DataFrame, task: str) -> Estimate:
    """Rise of TA-GRPO − as many samples in pass@32 per ten points of the measured gap, at equal success on originals.

    One regression with an intercept for each seed; the interval is from leaving out one seed at a time.
    """
    starts = chosen(runs, UNTRAINED, "original").loc[[task]]
    numbers = pd.DataFrame({
        "gap": starts["gap"], "original": starts["pass@1"], "rise": difference(runs, OURS, THEIRS, 32)
    }).dropna().loc[task].loc[list(GAPS)]  # fmt: skip

    def slope(some: Any) -> float:
        within = some - some.groupby("seed").transform("mean")
        (gap, _), *_ = np.linalg.lstsq(within[["gap", "original"]].to_numpy(), within["rise"].to_numpy(), rcond=None)
        return float(gap) / 10

    whole, seeds = slope(numbers), numbers.index.unique("seed")
    left = np.array([slope(numbers.drop(index=seed, level="seed")) for seed in seeds])
    reach = stats.t.isf(LEVEL / 2, len(seeds) - 1) * left.std() * (len(seeds) - 1) ** 0.5
    return Estimate(whole, whole - reach, whole + reach)


def noise_table(runs: pd.DataFrame, predicted: pd.DataFrame) -> Iterator[str]:
    """What each arm gains over GRPO without sampling noise and with it, and how it goes with what was predicted."""
    before = predicted.set_index(["arm", "k", "task", "branch", "seed"])["predicted"].sort_index()
    rows = []
    for arm, k in product([arm for arm in ARMS if arm != "grpo"], KS):
        loud = difference(runs, arm, "grpo", k)
        x, y = difference(runs, f"{arm}@expected", "grpo@expected", k).align(loud, join="inner")
        told = before[arm, k].sub(before["grpo", k]).align(loud, join="inner")
        by_cell = [of.groupby(["task", "branch"]).mean().groupby("task").transform(stats.zscore) for of in told]
        rs = (f"{np.corrcoef(*pair)[0, 1]:.2f}".replace("-", "−") for pair in ((x, y), by_cell))
        rows.append([f"`{arm}`", f"pass@{k}", f"{len(x)}", points(x.mean()), points(y.mean()), *rs])
    yield from table(["arm − GRPO", "", "runs", "without noise", "with it", "r", "r predicted"], rows)


def kinds_table(runs: pd.DataFrame) -> Iterator[str]:
    """Of each kind of reformulation its gap, and what the arms gain in pass@32 over as many samples."""
    arms = [name for name, arm in ARMS.items() if arm.reformulations]
    gaps, rows = gaps_of(runs), []
    for kind in KINDS:
        gap = ", ".join(points(gaps[task, "kinds", kind]) for task in RECIPES)
        gains = [over_tasks(runs, arm, kind) for arm in arms]
        rows.append([kind, gap, *(each.signed for each in gains)])
    yield from table(["kind", "gap", *(f"`{arm}`" for arm in arms)], rows)


def arms_table(runs: pd.DataFrame) -> Iterator[str]:
    """Of each arm at the least and the largest gap, means over tasks and seeds."""
    columns = ("pass@1", "pass@32", "pass@1000", "cover@0.5", "lost@32", "gained@32")
    rows = []
    for branch, arm in product((GAPS[0], GAPS[-1]), (UNTRAINED, *ARMS)):
        original, unseen = (chosen(runs[runs["branch"] == branch], arm, wording) for wording in WORDINGS[:2])
        means = [*original[list(columns)].mean(), unseen["pass@32"].mean()]
        rows.append([branch, f"`{arm}`", *(f"{100 * mean:.1f}" for mean in means)])
    yield from table(["gap", "arm", *columns, "pass@32, unseen wording"], rows)


def texts(runs: pd.DataFrame, predicted: pd.DataFrame) -> dict[str, str]:
    """Name in page.md → what stands there."""
    law, findings = judged(runs)
    numbers = {f"claim{n}": "; ".join(each.estimate.signed for each in found) for n, found in enumerate(findings, 1)}
    spent = runs[runs["arm"] != UNTRAINED].drop_duplicates(list(RUN))
    hours = spent.filter(like="seconds/").sum().sum() / 3600
    return {
        **numbers,
        "claims": "\n".join(claims_table(findings)),
        "noise": "\n".join(noise_table(runs, predicted)),
        "kinds": "\n".join(kinds_table(runs)),
        "arms": "\n".join(arms_table(runs)),
        **{f"per_gap_{task}": per_gap(runs, task).signed for task in RECIPES},
        "law": LAW_WORDS[law],
        "runs": f"{len(spent):,}",
        "hours": f"{hours:.1f}",
        "outlying": ", ".join(sorted({name for of in findings for each in of for name in each.outlying})) or "none",
    }


def main() -> None:
    """Write the page and its pictures."""
    runs, folder = pd.read_csv(RUNS), PAGE.with_suffix("")
    text = Template(TEXT.read_text(encoding="utf-8")).substitute(texts(runs, pd.read_csv(PREDICTED)))
    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures(runs).items():
        save(picture, folder / f"{name}.png")
    write_text(PAGE, text)
    print(PAGE)


if __name__ == "__main__":
    main()
