"""Tables and pictures of docs/results.md: `python -m studies.page` writes them from the tables of the studies."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from tagrpo.analysis.plots import finished, looks, panels, save, styled
from tagrpo.analysis.sections import table
from tagrpo.files import write_section

from .benchmark import page as benchmark
from .tasks import over_tasks, points
from .third import page as third
from .third.claims import OURS, THEIRS, Pair
from .third.design import RECIPES
from .third.effects import INTERACTIONS, LEADS, POINTS, over_untrained

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results.md"
LABELS: Mapping[str, str] = {
    "grpo": "GRPO",
    THEIRS: "GRPO,\nas many",
    OURS: "TA-GRPO",
    "pass_at_k": "Pass@k\ntraining",
}
"""Methods of the third study → label of a tick."""
TOGETHER = ("rise", "rise, best validation", "rise, unseen wording")
"""Effects of `INTERACTIONS` on the page."""


def sections(runs: pd.DataFrame, rows: Sequence[benchmark.Row]) -> dict[str, str]:
    """Return the generated sections of the page by name.

    Args:
        runs: Table of the third study's runs.
        rows: Methods of the benchmark.
    """
    ranked = benchmark.everywhere(rows)
    against = benchmark.against_references(ranked)
    ahead = ", ".join(points(value) for value in against.ahead.values())
    (ours,) = (row for row in ranked if row.name == OURS)
    counted = (
        f"Of {len(ranked)} methods, {len(against.better)} beat GRPO with about as many responses, on average "
        f"by {ahead} in these tasks: {benchmark.names(against.better)}. Worse: {benchmark.names(against.worse)}. "
        f"For {len(against.differ)} the sign depends on the task. TA-GRPO's lead is {ours.difference.short}."
    )
    columns = ["method", "checkpoint", *third.GAINS[2:-1]]
    return {
        "gains": "\n".join(table(columns, [row[:-1] for row in third.gains_rows(runs)])),
        "leads": "\n".join(effects_table(runs, LEADS)),
        "together": "\n".join(effects_table(runs, {name: INTERACTIONS[name] for name in TOGETHER})),
        "methods": "\n".join([*table(benchmark.COUNTED, benchmark.counts(ranked)), "", counted]),
    }


def effects_table(runs: pd.DataFrame, effects: Mapping[str, Pair]) -> list[str]:
    """Return one row for each effect, with the mean and every task."""
    rows = [[name, *third.cells(over_tasks(pair(runs)))] for name, pair in effects.items()]
    return table(["", "mean", *RECIPES], rows)


@styled
def draw_gains(runs: pd.DataFrame) -> Figure:
    """Draw gains in pass@32 over the untrained policy: a panel for each task, with 95 % intervals."""
    figure, axes = panels(len(RECIPES), height=2.8, sharey=True)
    look = looks(POINTS.values())
    places = np.arange(len(LABELS))
    for axis, task in zip(axes, RECIPES, strict=True):
        for aside, (point, name) in zip((-0.12, 0.12), POINTS.items(), strict=True):
            gains = [over_tasks(over_untrained(arm, 32, point)(runs)).tasks[task] for arm in LABELS]
            value = 100 * np.array([gain.value for gain in gains])
            low = 100 * np.array([gain.low for gain in gains])
            high = 100 * np.array([gain.high for gain in gains])
            style = {**look[name], "linestyle": "none"}
            axis.errorbar(places + aside, value, [value - low, high - value], label=name, **style)
        axis.axhline(0, color="0.3", linewidth=0.8, zorder=0)
        axis.set_xticks(places, list(LABELS.values()), fontsize=8)
        axis.set(title=task)
    return finished(figure, axes, "pass@32 − untrained, points")


def draw_gaps(runs: pd.DataFrame) -> Figure:
    """Draw by the gap what TA-GRPO gains over as many samples, and over the sum of its parts."""
    lines = {
        "TA-GRPO − GRPO with as many samples": third.line(OURS, THEIRS),
        "TA-GRPO − pooled − anchored + exposure (post hoc)": third.more_than_parts,
    }
    rows = [(32, point) for point in POINTS]
    return third.draw(runs, rows, lines, "difference, points")


def main() -> None:
    """Write the tables and pictures of the page."""
    runs = pd.read_csv(third.RUNS)
    rows = benchmark.rows_of(benchmark.methods_of(*benchmark.kept()))
    pictures = {"gains": draw_gains(runs), "gaps": draw_gaps(runs)}
    for name, picture in pictures.items():
        save(picture, PAGE.with_suffix("") / f"{name}.png")
    for name, text in sections(runs, rows).items():
        write_section(PAGE, name, text)
    print(PAGE)


if __name__ == "__main__":
    main()
