"""The figures of what diagnostics measured: TA-GRPO's Fig. 3 and 4, and why questions give no gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..metrics.functional import CAUSES
from .comparison import Runs
from .diagnosis import COLUMNS, stage_name
from .plots import COLOURS, HATCHES, LINES, finished, panels, smoothed, styled
from .runs import RunFiles

POOLS = {"original": "original (G)", "rephrasings": "rephrasings (N·G)"}
STAGES = ("start", "25 %", "50 %", "75 %", "100 %")
Curve = tuple[str, np.ndarray | pd.Series]
"""Label, and [questions] distances; one without any is not drawn."""


def stage_of(iteration: np.ndarray | pd.Series, last: int) -> np.ndarray:
    """[n] index in `STAGES` of the stage that each iteration is nearest to.

    >>> stage_of(np.array([0, 7, 12, 23, 47]), 47).tolist()
    [0, 1, 1, 2, 4]
    """
    return np.rint(4 * np.asarray(iteration) / max(last, 1)).astype(int)


def by_stage(run: RunFiles, names: Sequence[str]) -> dict[str, dict[str, np.ndarray]]:
    """Name → stage of training → values: one per question of a diagnosis; without one, those logged near the stage."""
    if run.diagnosis is not None:
        points = {stage_name(point): point["questions"] for point in run.diagnosis["checkpoints"]}
        return {
            name: {stage: np.array([row[name] for row in rows if name in row]) for stage, rows in points.items()}
            for name in names
        }
    found: dict[str, dict[str, np.ndarray]] = {}
    for name in names:
        pool = name.removeprefix("embedding_distance/")
        rows = run.diversity[run.diversity["pool"] == pool].set_index("iteration")["distance"]
        values = run.scalar(name) if pool == name else rows
        if values is not None and len(values):
            stages = stage_of(values.index.to_numpy(), int(values.index.max()))
            found[name] = {label: values.to_numpy(dtype=float)[stages == i] for i, label in enumerate(STAGES)}
    return found


@styled
def equal_rewards_by_stage(run: RunFiles) -> Figure:
    """Questions whose responses all have the same reward, by stage of training (TA-GRPO, Fig. 3).

    With 95 % intervals where the run was diagnosed.
    """
    columns = [name for name in COLUMNS if name.startswith("uniform_reward/")]
    found = {name: stages for name, stages in by_stage(run, columns).items() if any(map(len, stages.values()))}
    figure, (ax,) = panels(1, width=5.2)
    stages = list(next(iter(found.values()), {}))
    for index, (name, values) in enumerate(found.items()):
        width = 0.8 / len(found)
        place = np.arange(len(stages)) + width * (index - (len(found) - 1) / 2)
        look: Any = {"color": COLOURS[index], "hatch": HATCHES[index], "edgecolor": "white"}
        means = [float(values[stage].mean()) if len(values[stage]) else np.nan for stage in stages]
        if run.diagnosis is not None:
            points = [point["metrics"][name] for point in run.diagnosis["checkpoints"]]
            look["yerr"] = [[abs(x[end] - x["value"]) for x in points] for end in ("low", "high")]
            look["error_kw"] = {"elinewidth": 0.9}
        bars = ax.bar(place, means, 0.92 * width, label=COLUMNS[name].removeprefix("equal rewards, "), **look)
        ax.bar_label(bars, fmt="%.0f", padding=1, fontsize=7)
    ax.set_xticks(range(len(stages)), stages)
    ax.set(title=run.method, xlabel="training", ylim=(0, 105))
    return finished(figure, [ax], "% of questions, equal rewards")


@styled
def why_no_gradient(runs: Mapping[str, RunFiles]) -> Figure:
    """Questions without gradient over training by cause: stacked running means, one panel per run."""
    figure, axes = panels(len(runs), sharey=True)
    for ax, (name, run) in zip(axes, runs.items(), strict=True):
        found = {cause: values for cause in CAUSES if (values := run.scalar(f"zero_gradient/{cause}")) is not None}
        below: Any = 0.0
        for (cause, logged), colour, hatch in zip(found.items(), COLOURS, HATCHES, strict=False):
            values = smoothed(logged)
            look: Any = {"facecolor": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.4}
            if values.any():
                ax.fill_between(values.index, below, below + values, label=cause.replace("_", " "), **look)
            below = below + values
        ax.set(title=name, xlabel="iteration")
    return finished(figure, axes, "% of questions, no gradient", from_zero=True)


def distances_by_stage(run: RunFiles) -> Figure:
    """Mean pairwise embedding distances by stage of training (TA-GRPO, Fig. 4); one panel per pool."""
    found = by_stage(run, [f"embedding_distance/{pool}" for pool in POOLS])
    return densities({POOLS[name.partition("/")[2]]: [*stages.items()] for name, stages in found.items()})


def diversity_densities(runs: Runs) -> Figure:
    """Mean pairwise embedding distances in both halves of training (TA-GRPO, Fig. 4); a panel per method with any."""
    found: dict[str, list[Curve]] = {}
    for method, seeds in runs.items():
        rows = pd.concat([run.diversity for run in seeds])
        half = np.where(rows["iteration"] > rows["iteration"].max() / 2, "second", "first")
        if len(rows):
            found[method] = [
                (f"{name}, {part} half of training", rows.loc[(rows["pool"] == pool) & (half == part), "distance"])
                for pool, name in POOLS.items()
                for part in ("first", "second")
            ]
    return densities(found)


@styled
def densities(distances: Mapping[str, Sequence[Curve]]) -> Figure:
    """Histograms over questions of their mean pairwise embedding distance, by panel, each of area one."""
    figure, axes = panels(max(len(distances), 1), sharex=True, sharey=True)
    largest = max((float(x.max()) for curves in distances.values() for _, x in curves if len(x)), default=1.0)
    edges = np.linspace(0, max(1.1 * largest, 1e-3), 33)
    for ax, (title, curves) in zip(axes, distances.items(), strict=False):
        for (label, values), colour, line in zip(curves, COLOURS, LINES * 2, strict=False):
            if len(values):
                heights = np.histogram(values, edges, density=True)[0]
                ax.stairs(heights, edges, label=label, linewidth=1.7, color=colour, linestyle=line)
        ax.set(title=title, xlabel="mean pairwise distance (1 − cosine)")
    return finished(figure, axes, "density over questions", from_zero=True)
