"""Pictures of the study: gains over the untrained policy, at the end of training and on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import numpy as np

from tagrpo.analysis.statistics import Estimate

from .tables import BASE, settings_of

if TYPE_CHECKING:
    from .page import Gain

COURSES = ("grpo", "grpo_long", "grpo_matched", "ta_grpo", "pass_at_k")
DRAWN = ("factors", "pass_at_k")
"""Grids of the picture of gains."""
KS = (1, 32)


def draw_gains(of_methods: Sequence[Gain], path: Path) -> None:
    """Pass@1 and pass@32 over that of the untrained policy: means with 95 % intervals, and every setting."""
    rows = [gain for gain in of_methods if gain.grid in DRAWN]
    names = list(dict.fromkeys(name for gain in rows for name in gain.settings[KS[0]]))
    size = (10, 0.24 * len(rows) + 1.3)
    figure, axes = plt.subplots(1, len(KS), figsize=size, sharey=True, layout="constrained")
    places = np.arange(len(rows))[::-1]
    for axis, k in zip(axes, KS, strict=True):
        for number, name in enumerate(names):
            points = [(100 * gain.settings[k][name], y) for gain, y in zip(rows, places, strict=True)
                      if name in gain.settings[k]]  # fmt: skip
            axis.plot(*zip(*points, strict=True), ".", color=f"C{number}", markersize=5, alpha=0.7, label=name)
        look = {"color": "black", "markersize": 4, "label": "mean, 95 % interval"}
        draw_intervals(axis, [gain.of_k[k] for gain in rows], places, "D", 1.5, look)
        axis.axvline(0, color="0.4", linewidth=1)
        axis.set_xlabel(f"gain in pass@{k} over the untrained policy, points", fontsize=8)
        axis.grid(axis="y", color="0.92")
    paper = {"factors": "", "pass_at_k": " (paper)"}
    axes[0].set_yticks(places, [gain.method + paper[gain.grid] for gain in rows])
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=7, ncols=4, loc="outside upper center")
    save(figure, path)


def draw_intervals(
    axis: Any, of: Sequence[Estimate], places: np.ndarray, marker: str, width: float, look: Mapping[str, Any]
) -> None:
    """Estimates in points with their intervals, one above the other."""
    lows, values, highs = (100 * np.array([getattr(one, name) for one in of]) for name in ("low", "value", "high"))
    axis.hlines(places, lows, highs, color=look["color"], linewidth=width)
    axis.plot(values, places, marker, **look)
    axis.tick_params(labelsize=7)


def draw_courses(entries: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Pass@1 and pass@32 over those of the untrained policy, over training, in every setting; means over seeds."""
    settings = settings_of(entries)
    size = (2.1 * len(settings), 4)
    figure, axes = plt.subplots(len(KS), len(settings), figsize=size, sharex=True, squeeze=False, layout="constrained")
    for column, (name, setting) in zip(axes.T, settings.items(), strict=True):
        for k, axis in zip(KS, column, strict=True):
            start = setting.pass_at_k(BASE, k).to_numpy().mean()
            for number, method in enumerate(m for m in COURSES if m in setting.methods):
                responses, values = setting.course(method, k)
                gains = 100 * (np.append(start, values) - start)
                axis.plot(np.append(0, responses), gains, marker=".", color=f"C{number}", linewidth=1, label=method)
            axis.axhline(0, color="0.4", linewidth=1)
            axis.tick_params(labelsize=6)
        column[0].set_title(name, fontsize=8)
        column[-1].set_xlabel("responses", fontsize=7)
    for axis, k in zip(axes[:, 0], KS, strict=True):
        axis.set_ylabel(f"gain in pass@{k}, points", fontsize=8)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=7, ncols=len(labels), loc="outside upper center")
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    """Write a figure, the same bytes every time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
