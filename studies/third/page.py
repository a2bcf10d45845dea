"""The page of the study with its pictures: `python -m studies.third.page` writes docs/study.md from the table of runs.

What a word depends on is in `claims.py` and `verdicts.py`, which the plan froze; nothing here changes one.
"""

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
RIVALS = (THEIRS, "pooled", "anchored", UNTRAINED)
"""What TA-GRPO is compared with: the first three by the law."""
PARTS = ("exposure", "pooled", "anchored")
"""Of TA-GRPO, as arms of their own."""
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
            found = difference(runs, *pair, k)
            of = [mean_of(found[task, gap]) for gap in GAPS]
            value, low, high = (100 * np.array([getattr(each, at) for each in of]) for at in ("value", "low", "high"))
            reach = None if name in PARTS else [value - low, high - value]
            axis.errorbar(
                x + by, value, reach, label=name, elinewidth=0.9, alpha=0.5 if name in PARTS else 1, **look[name]
            )
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
    yield from table(["", "claim", "source", "effect", *RECIPES, "p of Q", "δ", "word"], rows)


def _effects(found: Finding) -> list[str]:
    mark, differ = " †" if found.outlying else "", found.heterogeneity
    tasks = (found.tasks[task].signed for task in RECIPES)
    return [found.estimate.signed + mark, *tasks, "–" if differ is None else f"{differ.p:.1g}"]


def standing_out(runs: pd.DataFrame, findings: Sequence[Sequence[Finding]]) -> str:
    """The seeds that Grubbs' test tells from the others of their setting."""
    found = []
    for number, (claim, of) in enumerate(zip(CLAIMS, findings, strict=True), 1):
        for each in of:
            for setting in each.outlying:
                seeds = claim.tables(runs)[each.label][setting].mean(axis=1)
                found.append(f"seed {(seeds - seeds.mean()).abs().idxmax()} in claim {number}, `{setting}`")
    return "; ".join(found) or "none"


def points(value: float) -> str:
    """A difference in points.

    >>> points(-0.0123)
    '−1.2'
    """
    return f"{100 * value:+.1f}".replace("-", "−")


def per_gap(runs: pd.DataFrame, task: str, *others: str) -> Estimate:
    """Rise of TA-GRPO − as many samples in pass@32 per ten points of the measured gap.

    One regression with an intercept for each seed, on the gap and `others`, numbers of the untrained policy; the
    interval is from leaving out one seed at a time.
    """
    columns = ["gap", *others]
    starts = chosen(runs, UNTRAINED, "original").loc[[task], columns]
    numbers = starts.assign(rise=difference(runs, OURS, THEIRS, 32)).loc[task].loc[list(GAPS)]

    def slope(some: Any) -> float:
        within = some - some.groupby("seed").transform("mean")
        (gap, *_), *_ = np.linalg.lstsq(within[columns].to_numpy(), within["rise"].to_numpy(), rcond=None)
        return float(gap) / 10

    whole, seeds = slope(numbers), numbers.index.unique("seed")
    left = np.array([slope(numbers.drop(index=seed, level="seed")) for seed in seeds])
    reach = stats.t.isf(LEVEL / 2, len(seeds) - 1) * left.std() * (len(seeds) - 1) ** 0.5
    return Estimate(whole, whole - reach, whole + reach)


def gaps_table(runs: pd.DataFrame) -> Iterator[str]:
    """Of each task the gaps, how hard the originals are there, and the rise of the law per measured gap."""
    starts, rows = chosen(runs, UNTRAINED, "original"), []
    for task in RECIPES:
        of = 100 * starts.loc[task].groupby("branch")[["gap", "pass@1", "pass@32"]].mean().loc[list(GAPS)]
        each = (f"{gap:+.0f}: {one:.0f}, {many:.0f}".replace("-", "−") for gap, one, many in of.to_numpy())
        rows.append([f"`{task}`", *each, *(per_gap(runs, task, *others).signed for others in ((), ("pass@1",)))])
    yield from table(["", *GAPS, "rise per ten points of gap", "… at equal pass@1"], rows)


def noise_table(runs: pd.DataFrame, predicted: pd.DataFrame) -> Iterator[str]:
    """Gains in pass@32 over as many samples without noise and with it, and what goes with the sampled ones.

    Correlations are over means of seeds, standardised within tasks.
    """
    before = predicted.set_index(["arm", "k", "task", "branch", "seed"])["predicted"].sort_index()
    gap, rows = chosen(runs, UNTRAINED, "original")["gap"], []
    for arm in (arm for arm in ARMS if arm != THEIRS):
        loud, told = difference(runs, arm, THEIRS, 32), before[arm, 32] - before[THEIRS, 32]
        quiet, same = difference(runs, f"{arm}@expected", f"{THEIRS}@expected", 32).align(loud, join="inner")
        gains = (", ".join(points(of[:, branch].mean()) for branch in GAPS[::2]) for of in (quiet, same))
        rs = (_correlation(*pair) for pair in ((quiet, same), (told, loud), (gap[told.index], loud)))
        rows.append([f"`{arm}`", f"{len(quiet)}", *gains, *rs])
    header = "arm − as many samples, runs, without noise, with it, r of these, r predicted, r with the gap"
    yield from table(header.split(", "), rows)


def _correlation(*pair: pd.Series) -> str:
    by_cell = pd.concat(pair, axis=1, join="inner").groupby(["task", "branch"]).mean()
    r = np.corrcoef(by_cell.groupby("task").transform(stats.zscore).T)[0, 1]
    return f"{r:.2f}".replace("-", "−")


def kinds_table(runs: pd.DataFrame) -> Iterator[str]:
    """Of each kind of reformulation its gap, and what the arms gain over as many samples, means of the tasks."""
    arms, gaps = [name for name, arm in ARMS.items() if arm.reformulations], gaps_of(runs)
    rows = []
    for kind in KINDS:
        gains = ([difference(runs, arm, THEIRS, k, kind) for k in KS] for arm in arms)
        shown = ("; ".join(over_tasks(each).signed for each in of) for of in gains)
        rows.append([kind, ", ".join(points(gaps[task, "kinds", kind]) for task in RECIPES), *shown])
    places = ", ".join(f"`{task}`" for task in RECIPES)
    yield from table(["kind", f"gap in {places}", *(f"`{arm}`" for arm in arms)], rows)


def over_tasks(found: pd.Series) -> Estimate:
    """The mean over tasks of a difference in the policy `kinds`."""
    return estimate_of(moments_of({f"{task}/kinds": found[task, "kinds"].to_frame() for task in RECIPES}))


def arms_table(runs: pd.DataFrame) -> Iterator[str]:
    """Of each arm at the least and the largest gap, means over tasks and seeds."""
    changed = ("lost@32", "gained@32")
    columns = ("pass@1", "pass@32", "pass@1000", "cover@0.5", *changed)
    rows = []
    for arm in (UNTRAINED, *ARMS):
        original, unseen = (chosen(runs, arm, wording).groupby("branch").mean(True) for wording in WORDINGS[:2])
        means = original[list(columns)].assign(unseen=unseen["pass@32"]).loc[[GAPS[0], GAPS[-1]]]
        told = {name: ", ".join(f"{100 * each:.1f}" for each in of) for name, of in means.items()}
        if arm == UNTRAINED:
            told |= dict.fromkeys(changed, "–")
        rows.append([f"`{arm}`", *told.values()])
    yield from table(["arm", *columns, "pass@32, unseen wording"], rows)


def texts(runs: pd.DataFrame, predicted: pd.DataFrame) -> dict[str, str]:
    """Name in page.md → what stands there."""
    law, findings = judged(runs)
    effects = [(n, [each.estimate.signed for each in found]) for n, found in enumerate(findings, 1)]
    numbers = {f"claim{n}{part}": effect for n, of in effects for part, effect in zip("abc", of, strict=False)}
    spent = runs[runs["arm"] != UNTRAINED].drop_duplicates(list(RUN))
    hours, listed = spent.filter(like="seconds/").sum().sum() / 3600, spent.groupby("task")["training/listed"].mean()
    return {
        **numbers,
        "claims": "\n".join(claims_table(findings)),
        "noise": "\n".join(noise_table(runs, predicted)),
        "kinds": "\n".join(kinds_table(runs)),
        "arms": "\n".join(arms_table(runs)),
        "gaps": "\n".join(gaps_table(runs)),
        "law": LAW_WORDS[law],
        "runs": f"{len(spent):,}",
        "hours": f"{hours:.1f}",
        "outlying": standing_out(runs, findings),
        "listed": ", ".join(f"{100 * listed[task]:.1f} % in `{task}`" for task in RECIPES),
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
