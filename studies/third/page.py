"""The tables and pictures of the study's page: `python -m studies.third.page` writes them into README.md.

What a word depends on is in `claims.py` and `verdicts.py`, which the plan froze; nothing here changes one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from tagrpo.analysis.plots import finished, looks, panels, save, styled
from tagrpo.analysis.sections import table
from tagrpo.analysis.statistics import LEVEL, Estimate
from tagrpo.files import write_section

from ..tasks import OverTasks, over_tasks, points
from .claims import CLAIMS, OURS, THEIRS, Pair, _difference, chosen, judged
from .design import ARMS, GAPS, KINDS, RECIPES, UNTRAINED
from .effects import INTERACTIONS, LEADS, POINTS, excluded, over_untrained
from .verdicts import Finding, estimate_of, moments_of

HERE = Path(__file__).resolve().parent
RUNS, PREDICTED = HERE / "runs.csv.gz", HERE / "predicted.csv.gz"
PAGE = HERE / "README.md"
METHODS = ("grpo", THEIRS, OURS, "pass_at_k")
"""Arms that are methods of their own."""
PARTS = ("exposure", "pooled", "anchored")
"""Of TA-GRPO, as arms of their own."""
Line = Callable[[pd.DataFrame, int, str], pd.Series]
"""From the table of runs, k and a point: (task, branch, seed) → a difference in pass@k."""


def difference(
    runs: pd.DataFrame, ours: str, theirs: str, k: int, kind: str = "wording", point: str = "end"
) -> pd.Series:
    """(Task, branch, seed) → pass@k of ours − theirs; `<arm>@expected` is an arm without sampling noise."""
    return _difference(runs, ours, theirs, k, "original", kind, point)


def more_than_parts(runs: pd.DataFrame, k: int, point: str = "end") -> pd.Series:
    """(Task, branch, seed) → pass@k of TA-GRPO − pooled − anchored + exposure."""
    together = difference(runs, OURS, "pooled", k, point=point)
    return together - difference(runs, "anchored", "exposure", k, point=point)


def line(ours: str, theirs: str) -> Line:
    """Draw pass@k of ours − theirs."""
    return lambda runs, k, point: difference(runs, ours, theirs, k, point=point)


def mean_of(values: pd.Series) -> Estimate:
    """Of one number per seed, with its 95 % t-interval."""
    return estimate_of(moments_of({"one": values.to_frame()}))


def gaps_of(runs: pd.DataFrame) -> pd.Series:
    """(Task, branch, kind) → gap of the untrained policy, its mean over seeds."""
    starts = runs[(runs["arm"] == UNTRAINED) & (runs["wording"] == "original")]
    return starts.groupby(["task", "branch", "kind"])["gap"].mean()


@styled
def draw(
    runs: pd.DataFrame, rows: Sequence[tuple[int, str]], lines: Mapping[str, Line], label: str
) -> Figure:
    """Draw differences by the gap, with 95 % intervals: a row of panels for each of `rows`, a column for each task.

    Args:
        runs: Table of `results`.
        rows: (k, point of a run) of each row of panels.
        lines: Label → line. `PARTS` are pale and without intervals.
        label: Of the vertical axis.
    """
    gaps, look = 100 * gaps_of(runs), looks(lines)
    figure, axes = panels(len(rows) * len(RECIPES), abreast=len(RECIPES), height=2.6)
    for axis, ((k, point), task) in zip(axes, product(rows, RECIPES), strict=True):
        x = gaps[task].loc[list(GAPS), "wording"].to_numpy()
        aside = (np.arange(len(lines)) - len(lines) // 2) * np.ptp(x) / 150
        for (name, of_runs), by in zip(lines.items(), aside, strict=True):
            found = of_runs(runs, k, point)
            each = [mean_of(found[task, gap]) for gap in GAPS]
            value = 100 * np.array([estimate.value for estimate in each])
            low = 100 * np.array([estimate.low for estimate in each])
            high = 100 * np.array([estimate.high for estimate in each])
            reach = None if name in PARTS else [value - low, high - value]
            alpha = 0.5 if name in PARTS else 1
            axis.errorbar(x + by, value, reach, label=name, elinewidth=0.9, alpha=alpha, **look[name])
        axis.axhline(0, color="0.3", linewidth=0.8, zorder=0)
        axis.set(title=f"{task}, pass@{k}, {POINTS[point]}", xlabel="gap: reformulations − originals, points")
    return finished(figure, axes, label)


def pictures(runs: pd.DataFrame) -> dict[str, Figure]:
    """Name → picture: gains of all arms over the untrained policy, and those of TA-GRPO over other arms."""
    gains = {arm: line(arm, UNTRAINED) for arm in ARMS}
    leads = {f"TA-GRPO − {rival}": line(OURS, rival) for rival in (THEIRS, "pooled", "anchored")}
    leads["TA-GRPO − pooled − anchored + exposure"] = more_than_parts
    ends = tuple((32, point) for point in POINTS)
    return {
        "gains": draw(runs, ((1, "end"), *ends), gains, "gain over the untrained policy, points"),
        "dose": draw(runs, ends, leads, "difference, points"),
    }


def effects_table(runs: pd.DataFrame, effects: Mapping[str, Pair]) -> Iterator[str]:
    """One row for each effect, with every task and the number of seeds above 0."""
    rows = []
    for name, pair in effects.items():
        found = over_tasks(pair(runs))
        rows.append([name, *cells(found), found.positive])
    yield from table(["", "mean", *RECIPES, "seeds above 0"], rows)


def cells(found: OverTasks) -> list[str]:
    """The mean, or that tasks differ, and each task, in the columns of a table."""
    mean = "tasks differ" if found.mean is None else found.mean.signed
    tasks = (found.tasks[task].signed if task in found.tasks else "–" for task in RECIPES)
    return [mean, *tasks]


GAINS = ("arm", "point", "pass@32", *(f"… `{task}`" for task in RECIPES), "pass@1", "kept")
"""Columns of `gains_rows`."""


def gains_table(runs: pd.DataFrame) -> Iterator[str]:
    """Gains over the untrained policy, means over gaps, at the end of training and at the best validation."""
    yield from table(GAINS, gains_rows(runs))


def gains_rows(runs: pd.DataFrame) -> list[list[str]]:
    """Return the rows of the table of gains: the untrained policy, then each method at both points."""
    rows = [["untrained, %", "start", "–", *untrained(runs, 32), ", ".join(untrained(runs, 1)), "–"]]
    for arm, (point, name) in product(METHODS, POINTS.items()):
        found = over_tasks(over_untrained(arm, 32, point)(runs))
        one = over_tasks(over_untrained(arm, 1, point)(runs))
        stopped = "–" if point == "end" else kept(runs, arm, point)
        rows.append([f"`{arm}`", name, *cells(found), one.short, stopped])
    return rows


def kept(runs: pd.DataFrame, arm: str, point: str) -> str:
    """Share of an arm's runs at the gaps whose best policy is the untrained one, in % by task."""
    iterations = chosen(runs, arm, "original", point=point)["iteration"]
    shares = ((iterations[task].loc[list(GAPS)] == 0).mean() for task in RECIPES)
    return ", ".join(f"{100 * share:.0f}" for share in shares)


def untrained(runs: pd.DataFrame, k: int) -> list[str]:
    """Pass@k of the untrained policy in each task, means over gaps and seeds, in %."""
    starts = chosen(runs, UNTRAINED, "original")[f"pass@{k}"]
    return [f"{100 * starts[task].loc[list(GAPS)].mean():.1f}" for task in RECIPES]


def claims_table(runs: pd.DataFrame, findings: Sequence[Sequence[Finding]]) -> Iterator[str]:
    """One row for each claim."""
    rows = []
    for number, (claim, found) in enumerate(zip(CLAIMS, findings, strict=True), 1):
        tables = claim.tables(runs)
        effects = [
            "; ".join(each)
            for each in zip(*(_effects(each, tables[each.label]) for each in found), strict=True)
        ]
        told = [_word(each, excluded(claim, each.label, runs)) for each in found]
        if len(set(told)) == 1:
            told = told[:1]
        delta = f"{100 * claim.sign * claim.smallest:+g}".replace("-", "−")
        words = "; ".join(f"**{word}**" for word in told)
        rows.append([str(number), claim.statement, claim.source, *effects, delta, words])
    yield from table(["", "claim", "source", "effect", *RECIPES, "p of Q", "δ", "word"], rows)


def _effects(found: Finding, tables: Mapping[str, pd.DataFrame]) -> list[str]:
    mark, differ = " †" if found.outlying else "", found.heterogeneity
    mean, *tasks = cells(over_tasks(tables))
    return [mean + mark, *tasks, "–" if differ is None else f"{differ.p:.1g}"]


def _word(found: Finding, excluded: bool) -> str:
    """The plan's word; of an undecided sign, that an effect as large as claimed is excluded."""
    return "below δ" if found.word == "undecided" and excluded else found.word


def frame(lines: Iterable[str]) -> pd.DataFrame:
    """Read a table of this page as a data frame, for the notebook.

    >>> frame(["| arm | pass@1 |", "| --- | --- |", "| grpo | +1.0 |"]).loc["grpo", "pass@1"]
    '+1.0'
    """
    header, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return pd.DataFrame(rows, columns=header).set_index(header[0])


def standing_out(runs: pd.DataFrame, findings: Sequence[Sequence[Finding]]) -> str:
    """The seeds that Grubbs' test tells from the others of their setting."""
    found = []
    for number, (claim, of) in enumerate(zip(CLAIMS, findings, strict=True), 1):
        for each in of:
            for setting in each.outlying:
                seeds = claim.tables(runs)[each.label][setting].mean(axis=1)
                found.append(f"seed {(seeds - seeds.mean()).abs().idxmax()} in claim {number}, `{setting}`")
    return "; ".join(found) or "none"


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
        rows.append(
            [f"`{task}`", *each, *(per_gap(runs, task, *others).signed for others in ((), ("pass@1",)))]
        )
    yield from table(["", *GAPS, "rise per ten points of gap", "… at equal pass@1"], rows)


def noise_table(runs: pd.DataFrame, predicted: pd.DataFrame) -> Iterator[str]:
    """Gains in pass@32 over as many samples without noise and with it, and what goes with the sampled ones.

    Gains are means of gaps 0, 2 and 4. Correlations are over means of seeds, standardised within tasks.
    """
    before = predicted.set_index(["arm", "k", "task", "branch", "seed"])["predicted"].sort_index()
    gap, rows = chosen(runs, UNTRAINED, "original")["gap"], []
    for arm in (arm for arm in ARMS if arm != THEIRS):
        loud, told = difference(runs, arm, THEIRS, 32), before[arm, 32] - before[THEIRS, 32]
        quiet, same = difference(runs, f"{arm}@expected", f"{THEIRS}@expected", 32).align(loud, join="inner")
        gains = [f"{points(quiet[task].mean())}, {points(same[task].mean())}" for task in RECIPES]
        rs = (correlation(*pair) for pair in ((quiet, same), (told, loud), (gap[told.index], loud)))
        rows.append([f"`{arm}`", f"{len(quiet)}", *gains, *rs])
    yield from table(
        ["arm − as many samples", "runs", *(f"`{task}`: without noise, with it" for task in RECIPES),
         "r of these", "r predicted", "r with the gap"],
        rows,
    )  # fmt: skip


def predictions(runs: pd.DataFrame, predicted: pd.DataFrame) -> tuple[str, str]:
    """Correlation of TA-GRPO − pooled − anchored + exposure at the end with its prediction, and with the gap."""
    before = predicted.set_index(["arm", "k", "task", "branch", "seed"])["predicted"].sort_index()
    found = more_than_parts(runs, 32)
    told = before[OURS, 32] - before["pooled", 32] - before["anchored", 32] + before["exposure", 32]
    gap = chosen(runs, UNTRAINED, "original")["gap"]
    return correlation(told, found), correlation(gap[told.index], found)


def correlation(*pair: pd.Series) -> str:
    """Correlate two numbers of each cell over means of seeds, standardised within tasks."""
    by_cell = pd.concat(pair, axis=1, join="inner").groupby(["task", "branch"]).mean()
    r = np.corrcoef(by_cell.groupby("task").transform(stats.zscore).T)[0, 1]
    return f"{r:.2f}".replace("-", "−")


def kinds_table(runs: pd.DataFrame, k: int) -> Iterator[str]:
    """Of each kind of reformulation its gap, and what the arms gain over as many samples."""
    arms, gaps = [name for name, arm in ARMS.items() if arm.reformulations], gaps_of(runs)
    rows = []
    for kind in KINDS:
        gains = [of_kinds(difference(runs, arm, THEIRS, k, kind)).short for arm in arms]
        rows.append([kind, ", ".join(points(gaps[task, "kinds", kind]) for task in RECIPES), *gains])
    places = ", ".join(f"`{task}`" for task in RECIPES)
    yield from table(["kind", f"gap in {places}", *(f"`{arm}`" for arm in arms)], rows)


def of_kinds(found: pd.Series) -> OverTasks:
    """A difference in the policy `kinds`, over tasks."""
    return over_tasks({f"{task}/kinds": found[task, "kinds"].to_frame() for task in RECIPES})


def sections(runs: pd.DataFrame, findings: Sequence[Sequence[Finding]]) -> dict[str, str]:
    """Return the generated sections of the page by name."""
    return {
        "arms": "\n".join(gains_table(runs)),
        "leads": "\n".join(effects_table(runs, LEADS)),
        "interactions": "\n".join(effects_table(runs, INTERACTIONS)),
        "claims": "\n".join(claims_table(runs, findings)),
        "gaps": "\n".join(gaps_table(runs)),
        "outlying": f"{standing_out(runs, findings)}.",
    }


def main() -> None:
    """Write the tables and pictures of the page."""
    runs = pd.read_csv(RUNS)
    _, findings = judged(runs)
    for name, picture in pictures(runs).items():
        save(picture, PAGE.with_name(f"{name}.png"))
    for name, text in sections(runs, findings).items():
        write_section(PAGE, name, text)
    print(PAGE)


if __name__ == "__main__":
    main()
