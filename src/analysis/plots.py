"""The figures of a comparison. Okabe–Ito colours, and a line style and marker per method for print."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import gaussian_kde

from .runs import RunFiles
from .statistics import Estimate

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
POOLS = {"original": "original (G)", "neighbours": "rephrasings (N·G)", "pool": "pool ((N+1)·G)"}
Styles = Mapping[str, dict[str, Any]]
SMOOTH = 6
"""Iterations that a curve over training is averaged over."""


def looks(methods: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Method → colour, line style and marker, the same in every figure of a report."""
    return {
        method: {
            "color": COLOURS[index % len(COLOURS)],
            "linestyle": LINES[index % len(LINES)],
            "marker": MARKERS[index % len(MARKERS)],
        }
        for index, method in enumerate(methods)
    }


def panels(count: int, width: float = 3.6, height: float = 3.0) -> tuple[Figure, list[Axes]]:
    """A row of `count` panels in this module's style."""
    figure = Figure(figsize=(width * count, height), layout="constrained")
    axes = figure.subplots(1, count, squeeze=False)[0]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25)
    return figure, list(axes)


def pass_at_k_curves(curves: Mapping[str, Mapping[str, Mapping[int, Estimate]]], styles: Styles) -> Figure:
    """Pass@k over k with 95 % bands; one panel per split. `curves`: split → method → k → estimate."""
    figure, axes = panels(len(curves))
    for ax, (split, methods) in zip(axes, curves.items(), strict=True):
        for method, points in methods.items():
            ks = sorted(points)
            ax.plot(ks, [100 * points[k].value for k in ks], label=method, markersize=4, **styles[method])
            low, high = [100 * points[k].low for k in ks], [100 * points[k].high for k in ks]
            ax.fill_between(ks, low, high, color=styles[method]["color"], alpha=0.12, linewidth=0)
        ax.set_xscale("log", base=2)
        ax.set_xticks(ks, [str(k) for k in ks])
        ax.set(title=split, xlabel="k")
    axes[0].set_ylabel("pass@k (%)")
    axes[0].legend(loc="upper left", fontsize=8)
    return figure


def series_over_training(
    runs: Mapping[str, Sequence[RunFiles]], columns: Mapping[str, str], label: str, styles: Styles
) -> Figure:
    """Logged scalars over iterations, mean over seeds, smoothed; one panel per column. `columns`: name → title."""
    figure, axes = panels(len(columns))
    for ax, (column, title) in zip(axes, columns.items(), strict=True):
        for method, seeds in runs.items():
            series = [run.metrics[column] for run in seeds if column in run.metrics]
            if series:
                mean = pd.concat(series, axis=1).mean(axis=1).rolling(SMOOTH, min_periods=1).mean()
                style = {**styles[method], "marker": ""}
                ax.plot(np.arange(1, len(mean) + 1), mean, label=method, **style)
        ax.set(title=title, xlabel="iteration")
    axes[0].set_ylabel(label)
    axes[0].legend(fontsize=8)
    return figure


def diversity_densities(runs: Mapping[str, Sequence[RunFiles]]) -> Figure:
    """Density over questions of the mean pairwise embedding distance, first and second half of training (Fig. 4)."""
    measured = {method: [run.diversity for run in seeds if len(run.diversity)] for method, seeds in runs.items()}
    measured = {method: frames for method, frames in measured.items() if frames}
    figure, axes = panels(max(len(measured), 1))
    for ax, (method, frames) in zip(axes, measured.items(), strict=False):
        rows = pd.concat(frames)
        second = rows["iteration"] > rows["iteration"].max() / 2
        for index, pool in enumerate(("original", "neighbours")):
            for half, chosen in (("first half", ~second), ("second half", second)):
                distances = rows.loc[chosen & (rows["pool"] == pool), "distance"]
                if distances.nunique() > 1:
                    grid = np.linspace(0, 0.8, 200)
                    line, label = ":" if half == "first half" else "-", f"{POOLS[pool]}, {half}"
                    ax.plot(grid, gaussian_kde(distances)(grid), color=COLOURS[index], linestyle=line, label=label)
        ax.set(title=method, xlabel="mean pairwise distance")
        ax.legend(fontsize=7)
    axes[0].set_ylabel("density over questions")
    return figure


def save(figure: Figure, path: Path) -> Path:
    """Write `figure` as PNG."""
    figure.savefig(path, dpi=150)
    return path
