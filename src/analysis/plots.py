"""Figures drawn with matplotlib in Okabe–Ito colours, with line styles and markers for printing in grey."""

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from matplotlib.transforms import ScaledTranslation

from ..metrics.functional import CAUSES
from .runs import RunFiles

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
LINES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
Look = dict[str, Any]
STYLE: Any = {
    "font.size": 9, "axes.titlesize": 10, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.alpha": 0.25, "legend.frameon": False, "lines.markersize": 4.5,
}  # fmt: skip
styled = rc_context(STYLE)  # decorator: figures that are drawn inside have this style, others keep theirs


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Return the colour, line style and marker of each name; the first 64 names all look different."""
    return {name: _look(number) for number, name in enumerate(names)}


def _look(group: int | str) -> Look:
    """Return the look of a method, by its number, or of a cause.

    Every eight methods repeat the colours, with the next line style and the next marker. Up to 32 methods
    differ in colour or line style, and up to 64 in colour, line style or marker.
    """
    number = CAUSES.index(group) if isinstance(group, str) else group
    turn = number + number // len(COLOURS)
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": LINES[turn % len(LINES)],
        "marker": MARKERS[turn % len(MARKERS)],
    }


class Picture(Figure):
    """Figure that notebooks show as PNG without pyplot, and hence without global state."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, dpi=110, bbox_inches="tight")
        return buffer.getvalue()


def panels(
    count: int, width: float = 3.4, height: float = 2.9, *, sharey: bool = False, abreast: int = 4
) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` panels, in rows of at most `abreast` panels."""
    rows, columns = -(-count // abreast), min(count, abreast)
    figure = Picture(figsize=(width * columns, height * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, sharey=sharey).flat)
    for ax in axes[count:]:
        ax.remove()
    return figure, axes[:count]


def finished(figure: Figure, axes: Sequence[Axes], label: str) -> Figure:
    """Label the vertical axis and add one legend below all panels; return `figure`."""
    axes[0].set_ylabel(label)
    handles = {
        label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    # About twelve letters of this font size fit into an inch; the line of a key takes half an inch.
    wide = 0.6 + max(map(len, handles), default=0) / 12
    columns = max(1, min(len(handles), int(figure.get_figwidth() / wide)))
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=columns, handlelength=3.2)
    return figure


@styled
def draw(figure: Mapping[str, Any], runs: Sequence[RunFiles] = ()) -> Figure:
    """Draw a figure of `figures.py`, whose series refer to `runs` by position."""
    drawn, axes = panels(len(figure["panels"]), sharey=bool(figure["y"]))
    for ax, panel in zip(axes, figure["panels"], strict=True):
        by_label: dict[str, list[Mapping[str, Any]]] = {}
        for one in panel["series"]:
            by_label.setdefault(one["label"], []).append(one)
        for index, (label, alike) in enumerate(by_label.items()):
            look = {"label": label, **_look(alike[0]["group"])}
            if "column" in alike[0]:
                _over_training(
                    ax, [smoothed(runs[one["run"]].metrics[one["column"]].dropna()) for one in alike], look
                )
                continue
            # Series with intervals stand three points apart.
            aside = ScaledTranslation((index - (len(by_label) - 1) / 2) / 24, 0, drawn.dpi_scale_trans)
            for one in alike:
                if "low" in one:
                    ends = np.array([one["low"], one["high"]])
                    ax.update_datalim([point for end in ends for point in zip(one["x"], end, strict=True)])
                    place: Look = {"elinewidth": 0.9, "transform": ax.transData + aside}
                    ax.errorbar(one["x"], one["y"], abs(ends - one["y"]), linewidth=1.4, **place, **look)
                else:
                    ax.plot(one["x"], one["y"], linewidth=1.6, **{**look, "markevery": _some(len(one["x"]))})
        ax.autoscale_view()
        ax.set(title=panel["title"], xlabel=panel["x"])
        if panel.get("log"):
            values = sorted({x for one in panel["series"] for x in one["x"]})
            ax.set_xscale("log")
            ax.set_xticks(values[:: -(-len(values) // 8)])
            ax.minorticks_off()
        if ax.get_xlim()[1] > 1:
            ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    # once all are drawn, because they may share an axis
    for ax, panel in zip(axes, figure["panels"], strict=True):
        if panel.get("from_zero"):
            ax.set_ylim(bottom=0)
        elif ax.get_ylim()[0] < 0:
            ax.axhline(0, color="0.3", linewidth=0.8, zorder=0)
    return finished(drawn, axes, figure["y"])


def _over_training(ax: Axes, seeds: Sequence[pd.Series], look: Look) -> None:
    """Draw the mean over seeds as a thick line, and each seed as a thin line if there are several."""
    for values in seeds if len(seeds) > 1 else ():
        ax.plot(values.index, values, color=look["color"], linewidth=0.6, alpha=0.45)
    mean = pd.concat(list(seeds), axis=1).mean(axis=1)
    ax.plot(mean.index, mean, linewidth=1.8, clip_on=False, **{**look, "markevery": _some(len(mean))})


def _some(points: int) -> int:
    """Return the number of points per marker that gives a line of `points` points about six markers."""
    return max(points // 6, 1)


def smoothed(series: pd.Series) -> pd.Series:
    """Return the trailing mean over a window of one eighth of the series."""
    return series.rolling(max(len(series) // 8, 1), min_periods=1).mean()


def save(figure: Figure, path: Path) -> None:
    """Write `figure` as PNG."""
    figure.savefig(path, dpi=150, bbox_inches="tight")
