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
