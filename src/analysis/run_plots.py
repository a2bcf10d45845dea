"""The figures of one run: Fig. 3 and 4 of TA-GRPO, and why questions give no gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..metrics.functional import CAUSES
from .plots import COLOURS, HATCHES, LINES, POOLS, density, legend, panels, smoothed, styled
from .runs import RunFiles

STAGES = ("start", "25 %", "50 %", "75 %", "100 %")


def stage_of(iteration: np.ndarray | pd.Series, last: int) -> np.ndarray:
    """Index in `STAGES` of each iteration: the eighth of training that begins it, or that lies around its quarter.

    >>> stage_of(np.array([0, 7, 12, 23, 47]), 47).tolist()
    [0, 1, 1, 2, 4]
    """
    return np.rint(4 * np.asarray(iteration) / max(last, 1)).astype(int)


@styled
def equal_rewards_by_stage(run: RunFiles) -> Figure:
    """Questions whose responses have equal rewards, at the start and the quarters of training (TA-GRPO, Fig. 3).

    The paper measures the whole training set at checkpoints; here each bar is the mean over the batches nearest to it.
    """
    columns = {
        "uniform_reward/original": "original (G)",
        "uniform_reward/neighbours": "rephrasings (N·G)",
        "uniform_reward/pool": "all ((N+1)·G)",
    }
    found = {label: values for name, label in columns.items() if (values := run.scalar(name)) is not None}
    figure, (ax,) = panels(1, width=5.2)
    for index, (label, values) in enumerate(found.items()):
        means = values.groupby(stage_of(values.index.to_numpy(), int(values.index.max()))).mean()
        place = means.index + 0.27 * (index - (len(found) - 1) / 2)
        bars = ax.bar(place, means, 0.25, label=label, color=COLOURS[index], hatch=HATCHES[index], edgecolor="white")
        ax.bar_label(bars, fmt="%.0f", padding=1, fontsize=7)
    ax.set_xticks(range(len(STAGES)), STAGES)
    ax.set(title=run.method, ylabel="% of questions, equal rewards", xlabel="training", ylim=(0, 105))
    legend(figure, [ax])
    return figure


@styled
def why_no_gradient(runs: Mapping[str, RunFiles]) -> Figure:
    """Questions without gradient over training, by cause; running means, stacked; one panel per run."""
    figure, axes = panels(len(runs), sharey=True)
    for ax, (name, run) in zip(axes, runs.items(), strict=True):
        found = {cause: values for cause in CAUSES if (values := run.scalar(f"zero_gradient/{cause}")) is not None}
        for index, values in enumerate(stacks := [smoothed(values) for values in found.values()]):
            below = sum(stacks[:index], start=0 * values)
            look: Any = {"facecolor": COLOURS[index], "hatch": HATCHES[index], "edgecolor": "white", "linewidth": 0.4}
            if values.any():
                label = list(found)[index].replace("_", " ")
                ax.fill_between(values.index, below, below + values, label=label, **look)
        ax.set(title=name, xlabel="iteration")
    axes[0].set_ylabel("% of questions, no gradient")
    axes[0].set_ylim(bottom=0)
    legend(figure, axes)
    return figure


@styled
def distances_by_stage(run: RunFiles) -> Figure:
    """Density over questions of the mean pairwise embedding distance, by stage of training (TA-GRPO, Fig. 4)."""
    rows = run.diversity
    figure, axes = panels(len(POOLS), sharex=True, sharey=True)
    grid = np.linspace(0, max(1.1 * float(rows["distance"].max()) if len(rows) else 1.0, 1e-3), 256)
    stages = stage_of(rows["iteration"], int(rows["iteration"].max()) if len(rows) else 1)
    for ax, (pool, name) in zip(axes, POOLS.items(), strict=True):
        for stage, label in enumerate(STAGES):
            distances = rows.loc[(stages == stage) & (rows["pool"] == pool), "distance"].to_numpy(dtype=float)
            if len(distances):
                line = (LINES * 2)[stage]
                ax.plot(
                    grid, density(distances, grid), color=COLOURS[stage], linestyle=line, linewidth=1.6, label=label
                )
        ax.set(title=name, xlabel="mean pairwise distance (1 − cosine)")
    axes[0].set_ylabel("density over questions")
    axes[0].set_ylim(bottom=0)
    legend(figure, axes)
    return figure
