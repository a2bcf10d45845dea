"""Figures of strategies on recorded rollouts, and of how strongly they learn from a question."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..analysis.plots import finished, looks, panels, smoothed, styled
from ..types import AdvantageStrategy
from .eta import sum_of_absolute_advantage


@styled
def plot_eta(strategies: Mapping[str, AdvantageStrategy], num_samples: int = 32) -> Figure:
    """η = Σ |A| over the accuracy of a question with n responses (arXiv 2508.10751, Eq. 16 and Fig. 9)."""
    figure, (ax,) = panels(1, width=5.2, height=3.4)
    accuracy = np.arange(num_samples + 1) / num_samples
    for name, look in looks(strategies).items():
        eta = sum_of_absolute_advantage(strategies[name], num_samples).numpy()
        ax.plot(accuracy, eta, label=name, markevery=4, linewidth=1.5, **look)
    ax.set(xlabel=f"accuracy c/n (n = {num_samples})")
    return finished(figure, [ax], "η = Σ |A|")


@styled
def lines(series: Mapping[str, pd.Series], label: str) -> Figure:
    """Running means of named series over iterations."""
    figure, (ax,) = panels(1, width=5.2)
    for name, look in looks(series).items():
        values = smoothed(series[name])
        ax.plot(values.index, values, label=name, linewidth=1.4, color=look["color"], linestyle=look["linestyle"])
    ax.set(xlabel="iteration")
    return finished(figure, [ax], label, from_zero=True)


@styled
def heat(table: pd.DataFrame, label: str) -> Figure:
    """A square table of cosines as colours and numbers."""
    figure, (ax,) = panels(1, width=1.6 + 0.75 * len(table), height=1.2 + 0.6 * len(table))
    image = ax.imshow(table.to_numpy(dtype=float), cmap="cividis", vmin=-1, vmax=1)
    ax.set_xticks(range(len(table)), list(map(str, table)), rotation=30, ha="right")
    ax.set_yticks(range(len(table)), list(map(str, table.index)))
    ax.grid(visible=False)
    for row, values in enumerate(table.to_numpy(dtype=float)):
        for column, value in enumerate(values):
            colour = "black" if value > 0.3 else "white"
            ax.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=8)
    figure.colorbar(image, label=label)
    return figure
