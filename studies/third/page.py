"""The page of the study with its pictures: `python -m studies.third.page` writes docs/study.md from the table of runs.

What a word depends on is in `claims.py` and `verdicts.py`, which the plan froze; nothing here changes one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from string import Template
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy import stats

from tagrpo.analysis.sections import table
from tagrpo.analysis.statistics import LEVEL, Estimate
from tagrpo.runs.files import write_text

from .claims import CLAIMS, WORDINGS, chosen, judged
from .design import ARMS, GAPS, KINDS, RECIPES, UNTRAINED
from .results import RUN
from .verdicts import Finding, estimate_of, moments_of

HERE = Path(__file__).resolve().parent
RUNS, PREDICTED = HERE / "runs.csv.gz", HERE / "predicted.csv.gz"
TEXT = HERE / "page.md"
"""Texts around the tables of the page."""
PAGE = HERE.parents[1] / "docs" / "study.md"
COLOURS = dict(zip(ARMS, ("0.55", "0.15", "tab:olive", "tab:cyan", "tab:green", "tab:red", "tab:blue"), strict=True))
SHOWN = (1, 32)


def difference(
    runs: pd.DataFrame, ours: str, theirs: str, k: int, kind: str = "wording", wording: str = "original"
) -> pd.Series:
    """(Task, branch, seed) → pass@k of ours − theirs at the end; `<arm>@expected` is an arm without sampling noise."""
    sides = []
    for arm, _, path in (name.partition("@") for name in (ours, theirs)):
        sides.append(chosen(runs, arm, wording, kind, path or "sampled")[f"pass@{k}"])
    return (sides[0] - sides[1]).dropna()


def mean_of(values: pd.Series) -> Estimate:
    """Of one number per seed, with its 95 % t-interval."""
    reach = stats.t.isf(LEVEL / 2, len(values) - 1) * values.sem()
    return Estimate(float(values.mean()), float(values.mean() - reach), float(values.mean() + reach))


def by_gap(runs: pd.DataFrame, task: str, ours: str, theirs: str, k: int) -> list[Estimate]:
    """Pass@k of ours − theirs at each of `GAPS`."""
    found = difference(runs, ours, theirs, k)
    return [mean_of(found[task, gap]) for gap in GAPS]


def over_tasks(runs: pd.DataFrame, ours: str, theirs: str, k: int, branch: str, kind: str) -> Estimate:
    """Pass@k of ours − theirs, the mean over tasks."""
    found = difference(runs, ours, theirs, k, kind)
    return estimate_of(moments_of({f"{task}/{branch}": found[task, branch].to_frame() for task in RECIPES}))


def gaps_of(runs: pd.DataFrame) -> pd.Series:
    """(Task, branch, kind) → gap of the untrained policy, its mean over seeds."""
    starts = runs[(runs["arm"] == UNTRAINED) & (runs["wording"] == "original")]
    return starts.groupby(["task", "branch", "kind"])["gap"].mean()


def draw(axis: Any, x: np.ndarray, of: Sequence[Estimate], label: str, colour: str) -> None:
    """A line with 95 % intervals, in points."""
    value, low, high = (100 * np.array([getattr(each, name) for each in of]) for name in ("value", "low", "high"))
    axis.plot(x, value, ".-", color=colour, label=label, linewidth=1.3)
    axis.vlines(x, low, high, color=colour, linewidth=0.8)


def save(figure: Any, name: str) -> None:
    """Write a picture of the page, the same bytes every time."""
    path = PAGE.with_suffix("") / name
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def draw_gains(runs: pd.DataFrame) -> Any:
    """Gains of all arms over the untrained policy at every gap; a row for each k, a column for each task."""
    figure, axes = plt.subplots(len(SHOWN), len(RECIPES), figsize=(10, 6), sharex="col", layout="constrained")
    for row, k in zip(axes, SHOWN, strict=True):
        for axis, task in zip(row, RECIPES, strict=True):
            gaps = 100 * gaps_of(runs)[task].loc[list(GAPS), "wording"].to_numpy()
            for number, arm in enumerate(ARMS):
                shift = (number - 3) * (gaps[-1] - gaps[0]) / 150
                draw(axis, gaps + shift, by_gap(runs, task, arm, UNTRAINED, k), arm, COLOURS[arm])
            axis.axhline(0, color="0.4", linewidth=0.8)
            axis.set_title(f"{task}, pass@{k}", fontsize=9)
        row[0].set_ylabel("gain over the untrained policy, points", fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel("gap: reformulations − originals, points", fontsize=8)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(ARMS), fontsize=8)
    return figure


def draw_dose(runs: pd.DataFrame) -> Any:
    """What TA-GRPO gains in pass@32 over what it is compared with, by the gap."""
    figure, axes = plt.subplots(1, len(RECIPES), figsize=(10, 3.4), layout="constrained")
    for axis, task in zip(axes, RECIPES, strict=True):
        gaps = 100 * gaps_of(runs)[task].loc[list(GAPS), "wording"].to_numpy()
        for number, rival in enumerate(("grpo_matched", "pooled", "anchored")):
            shift = (number - 1) * (gaps[-1] - gaps[0]) / 100
            of = by_gap(runs, task, "ta_grpo", rival, 32)
            draw(axis, gaps + shift, of, f"TA-GRPO − {rival}", COLOURS[rival])
        axis.axhline(0, color="0.4", linewidth=0.8)
        axis.set_title(task, fontsize=9)
        axis.set_xlabel("gap, points", fontsize=8)
    axes[0].set_ylabel("pass@32, points", fontsize=8)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    return figure


def claims_table(findings: Sequence[Sequence[Finding]]) -> Iterator[str]:
    """One row for each claim."""
    rows = []
    for number, (claim, found) in enumerate(zip(CLAIMS, findings, strict=True), 1):
        effects = ["; ".join(each) for each in zip(*map(_effects, found), strict=True)]
        words = "; ".join(dict.fromkeys(each.word for each in found))
        delta = f"{100 * claim.sign * claim.smallest:+g}".replace("-", "−")
        rows.append([str(number), claim.statement, claim.source, *effects, delta, f"**{words}**"])
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
        "gap": starts["gap"], "original": starts["pass@1"], "rise": difference(runs, "ta_grpo", "grpo_matched", 32)
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
    for arm, k in product([arm for arm in ARMS if arm != "grpo"], SHOWN):
        loud = difference(runs, arm, "grpo", k)
        x, y = difference(runs, f"{arm}@expected", "grpo@expected", k).align(loud, join="inner")
        told = before[arm, k].sub(before["grpo", k]).align(loud, join="inner")
        by_cell = [of.groupby(["task", "branch"]).mean().groupby("task").transform(stats.zscore) for of in told]
        rs = (f"{np.corrcoef(*pair)[0, 1]:.2f}" for pair in ((x, y), by_cell))
        rows.append([f"`{arm}`", f"pass@{k}", f"{len(x)}", points(x.mean()), points(y.mean()), *rs])
    yield from table(["arm − GRPO", "", "runs", "without noise", "with it", "r", "r predicted"], rows)


def kinds_table(runs: pd.DataFrame) -> Iterator[str]:
    """Of each kind of reformulation its gap, and what the arms gain in pass@32 over as many samples."""
    arms = [name for name, arm in ARMS.items() if arm.reformulations]
    gaps, rows = gaps_of(runs), []
    for kind in KINDS:
        gap = ", ".join(points(gaps[task, "kinds", kind]) for task in RECIPES)
        gains = [over_tasks(runs, arm, "grpo_matched", 32, "kinds", kind) for arm in arms]
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
    spent = runs.drop_duplicates([name for name in RUN if name != "rate"])
    hours = spent.filter(like="seconds/").sum().sum() / 3600
    return {
        **numbers,
        "claims": "\n".join(claims_table(findings)),
        "noise": "\n".join(noise_table(runs, predicted)),
        "kinds": "\n".join(kinds_table(runs)),
        "arms": "\n".join(arms_table(runs)),
        **{f"per_gap_{task}": per_gap(runs, task).signed for task in RECIPES},
        "law": law,
        "runs": f"{len(spent):,}",
        "hours": f"{hours:.1f}",
        "outlying": ", ".join(sorted({name for of in findings for each in of for name in each.outlying})) or "none",
    }


def main() -> None:
    """Console entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    runs = pd.read_csv(RUNS)
    save(draw_gains(runs), "gains.png")
    save(draw_dose(runs), "dose.png")
    write_text(PAGE, Template(TEXT.read_text(encoding="utf-8")).substitute(texts(runs, pd.read_csv(PREDICTED))))
    print(PAGE)


if __name__ == "__main__":
    main()
