"""The figures of comparisons, and the style of all figures: Okabe–Ito colours; lines, markers and hatches for print."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

from .comparison import Curves, Runs
from .statistics import Estimate

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
HATCHES = ("", "///", "...", "xx", "\\\\\\", "++", "oo", "**")
Look = dict[str, Any]
Styles = Mapping[str, Look]
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.markersize": 4.5,
}
WINDOWS = 8
"""A curve over training is averaged over a window of one eighth of it."""
styled = rc_context(STYLE)
"""Decorator: figures that are drawn inside have this module's style, others keep theirs."""


def looks(methods: Iterable[str]) -> dict[str, Look]:
    """Method → colour, line style and marker, the same in every figure of a report."""
    found = zip(methods, cycle(COLOURS), cycle(LINES), cycle(MARKERS), strict=False)
    return {method: {"color": colour, "linestyle": line, "marker": marker} for method, colour, line, marker in found}


class Picture(Figure):
    """A figure that notebooks show as PNG without pyplot, and so without any global state."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, dpi=110, bbox_inches="tight")
        return buffer.getvalue()


def panels(
    count: int, width: float = 3.4, height: float = 2.9, *, sharex: bool = False, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """A row of `count` panels."""
    figure = Picture(figsize=(width * count, height), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False, sharex=sharex, sharey=sharey)[0])


def error_bars(*estimates: Estimate) -> np.ndarray:
    """[2, n] how far the intervals of estimates reach below and above them, in points."""
    return 100 * np.array([(e.value - e.low, e.high - e.value) for e in estimates]).T


def finished(figure: Figure, axes: Sequence[Axes], label: str, *, from_zero: bool = False) -> Figure:
    """`figure` with the label of its vertical axis, and below all panels one legend."""
    axes[0].set_ylabel(label)
    if from_zero:
        axes[0].set_ylim(bottom=0)
    handles = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    # About twelve letters of this font size fit into an inch; the line of a key takes half an inch.
    wide = 0.6 + max(map(len, handles), default=0) / 12
    columns = max(1, min(len(handles), int(figure.get_figwidth() / wide)))
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=columns, handlelength=3.2)
    return figure


@styled
def pass_at_k_curves(curves: Curves, styles: Styles, label: str = "pass@k (%)") -> Figure:
    """Pass@k over k, one panel per split (TA-GRPO, Fig. 5). Methods are shifted sideways to stay apart."""
    figure, axes = panels(len(curves))
    for ax, (split, methods) in zip(axes, curves.items(), strict=True):
        for index, (method, points) in enumerate(methods.items()):
            ks = np.array(sorted(points))
            shifted = ks * 2.0 ** (0.09 * (index - (len(methods) - 1) / 2))
            found = [points[k] for k in ks]
            look = {"label": method, "linewidth": 1.4, "elinewidth": 0.9, **styles[method]}
            ax.errorbar(shifted, [100 * e.value for e in found], error_bars(*found), **look)
        ax.set_xscale("log", base=2)
        ax.set_xticks(ks, [str(k) for k in ks])
        ax.set(title=split, xlabel="k")
        ax.minorticks_off()
    return finished(figure, axes, label)


@styled
def pass_at_k_gains(gains: Curves, baseline: str, styles: Styles) -> Figure:
    """Paired differences of pass@k from `baseline` over k. Bars are 95 % intervals, which are not corrected."""
    figure = pass_at_k_curves(gains, styles, f"pass@k minus {baseline} (points)")
    for ax in figure.axes:
        ax.axhline(0, color="0.3", linewidth=0.8, zorder=0)
    return figure


@styled
def series_over_training(
    runs: Runs, columns: Mapping[str, str], label: str, styles: Styles, *, together: bool = False
) -> Figure:
    """Running means of logged scalars over iterations; seeds thin and their mean thick.

    `columns`: scalar → title of its panel; those that no run has logged have none. `label` is that of the vertical
    axis, which panels share where they are `together`, from zero.
    """
    every = [run for seeds in runs.values() for run in seeds]
    logged = [column for column in columns if any(run.scalar(column) is not None for run in every)] or list(columns)
    figure, axes = panels(len(logged), sharey=together)
    for ax, column in zip(axes, logged, strict=True):
        for method, seeds in runs.items():
            series = [smoothed(values) for run in seeds if (values := run.scalar(column)) is not None]
            look = {name: styles[method][name] for name in ("color", "linestyle")}
            seeds_and_mean(ax, series, {"label": method, "clip_on": False, **look})
        ax.set(title=columns[column], xlabel="iteration")
    return finished(figure, axes, label, from_zero=together)


def seeds_and_mean(ax: Axes, series: Sequence[pd.Series], look: Look) -> None:
    """Draw the series of all seeds over iterations, thin where there are several, and their mean, thick."""
    for values in series if len(series) > 1 else ():
        ax.plot(values.index, values, color=look["color"], linewidth=0.6, alpha=0.45)
    if series:
        mean = pd.concat(series, axis=1).mean(axis=1)
        ax.plot(mean.index, mean, linewidth=1.8, **look)


def smoothed(series: pd.Series) -> pd.Series:
    """Trailing mean over one eighth of the series."""
    return series.rolling(max(len(series) // WINDOWS, 1), min_periods=1).mean()


@styled
def bars(estimates: Mapping[str, Estimate], label: str) -> Figure:
    """One bar per method with its 95 % interval (as in TA-GRPO, Fig. 6 to 8)."""
    figure, (ax,) = panels(1, width=max(3.4, 1.0 * len(estimates)))
    values, reach = [100 * e.value for e in estimates.values()], error_bars(*estimates.values())
    look: Look = {"color": COLOURS, "hatch": [HATCHES[i % len(HATCHES)] for i in range(len(values))]}
    error: Look = {"elinewidth": 0.9, "capsize": 3}
    ax.bar(range(len(values)), values, 0.7, yerr=reach, error_kw=error, edgecolor="white", **look)
    for index, value in enumerate(values):
        ax.text(index - 0.04, value, f"{value:.1f}", ha="right", va="bottom", fontsize=8)
    ax.set_xticks(range(len(values)), list(estimates), rotation=20, ha="right")
    ax.set_ylabel(label)
    return figure


@styled
def stacked(table: pd.DataFrame, label: str) -> Figure:
    """One horizontal bar per row of `table`, its columns stacked."""
    figure, (ax,) = panels(1, width=5.2, height=1.4 + 0.3 * len(table))
    ends = table.cumsum(axis=1)
    for (name, counts), colour, hatch in zip(table.items(), COLOURS, HATCHES, strict=False):
        look: Look = {"color": colour, "hatch": hatch, "edgecolor": "white"}
        ax.barh(range(len(table)), counts, left=ends[name] - counts, label=str(name), **look)
    ax.set_yticks(range(len(table)), list(map(str, table.index)))
    ax.invert_yaxis()
    ax.set_xlabel(label)
    return finished(figure, [ax], "")


@styled
def against(
    estimates: Mapping[str, Mapping[str, Estimate]],
    amounts: Mapping[str, float],
    label: str,
    k: int,
    styles: Styles,
    series: Sequence[Sequence[str]] | None = None,
) -> Figure:
    """Pass@k of trained policies against what they were trained with (TA-GRPO, Fig. 7); one panel per split or average.

    `label` is that of the `amounts`. Each of `series` is methods that a line joins in the look of the first; None joins
    none. Where each is alone, the scale is logarithmic and equal amounts are shifted to stand apart. Methods in no
    series are horizontal lines.
    """
    series = [[m] for m, amount in amounts.items() if amount] if series is None else series
    figure, axes = panels(len(estimates))
    alone = all(len(joined) == 1 for joined in series)
    untrained = [m for m in next(iter(estimates.values())) if not any(m in joined for joined in series)]
    for ax, (split, methods) in zip(axes, estimates.items(), strict=True):
        for index, joined in enumerate(series):
            first, shift = joined[0], 1.03 ** (index - (len(series) - 1) / 2) if alone else 1.0
            found = [methods[m] for m in joined]
            look = styles[first] | ({"linestyle": ""} if len(joined) == 1 else {})
            look |= {"label": first, "elinewidth": 0.9, "linewidth": 1.2}
            ax.errorbar(
                [amounts[m] * shift for m in joined], [100 * e.value for e in found], error_bars(*found), **look
            )
        for method in untrained:
            style = {**styles[method], "marker": ""}
            ax.axhline(100 * methods[method].value, label=f"{method} (not trained)", linewidth=1.4, **style)
        if alone:
            ax.set_xscale("log")
            ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))
        ax.set(title=split, xlabel=label)
    return finished(figure, axes, f"pass@{k} (%)")


def save(figure: Figure, path: Path) -> None:
    """Write `figure` as PNG."""
    figure.savefig(path, dpi=150, bbox_inches="tight")
