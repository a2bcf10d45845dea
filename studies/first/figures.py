"""The figures of the study, drawn from its digest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from tagrpo.analysis import plots
from tagrpo.analysis.statistics import difference

from .explanations import Regimes, steps_of

SHOWN = ("grpo", "grpo_matched", "exposure", "ta_grpo", "ta_grpo_corrected", "pass_at_k", "pass_at_k_pooled")
"""Methods that are drawn as curves; with more of them they could not be told apart."""
KS = (1, 2, 4, 8, 16, 32)
BASELINE = "grpo_matched"
CAPTIONS = {
    "steps": "What each choice adds to pass@k over all test questions, with 95 % intervals that are not corrected.",
    "zero_gradient": "Questions whose advantages are all zero: means over seeds, running over an eighth of training.",
    "entropy": "Policy entropy per sampled token: means over seeds, running over an eighth of training.",
    "gains": f"Pass@k minus that of {BASELINE} on the same test questions, with 95 % intervals for each k on its own.",
}
"""Name of the file → its caption."""


def draw(regimes: Regimes, folder: Path) -> None:
    """Write all figures as PNG; `CAPTIONS` names them."""
    folder.mkdir(parents=True, exist_ok=True)
    methods = [m for m in SHOWN if any(m in regime.methods for regime in regimes.values())]
    figures = {
        "steps": steps(regimes),
        "zero_gradient": over_iterations(regimes, "zero_gradient/percentage", "% of questions, no gradient", methods),
        "entropy": over_iterations(regimes, "rollout/entropy", "entropy (nats per token)", methods),
        "gains": gains(regimes, methods),
    }
    for name, figure in figures.items():
        plots.save(figure, folder / f"{name}.png")


@plots.styled
def steps(regimes: Regimes) -> Figure:
    """Differences in pass@1 and pass@32 with their intervals, one panel per regime."""
    figure, axes = plots.panels(len(regimes), width=4.2, height=3.1, sharex=True, sharey=True)
    for ax, (name, regime) in zip(axes, regimes.items(), strict=True):
        found = list(steps_of(regime))
        for index, k in enumerate((1, 32)):
            for row, (*_, differences) in enumerate(found):
                e = differences[k].estimate
                look: Any = {"color": plots.COLOURS[index], "marker": plots.MARKERS[index], "linestyle": ""}
                look["label"] = f"pass@{k}" if row == 0 else None
                place = row + 0.3 * (index - 0.5)
                ax.errorbar([100 * e.value], [place], xerr=plots.error_bars(e), elinewidth=1.1, **look)
        ax.axvline(0, color="0.3", linewidth=0.8, zorder=0)
        ax.set_yticks(range(len(found)), [f"{what}\n{pair}" for what, pair, _ in found], fontsize=7.5)
        ax.set(title=name, xlabel="points")
    axes[0].invert_yaxis()
    return plots.finished(figure, axes, "")


def gains(regimes: Regimes, methods: Sequence[str]) -> Figure:
    """Paired differences of pass@k from the baseline over k, one panel per regime."""
    found = {
        name: {
            method: {k: difference(regime.pass_at_k(method, k), regime.pass_at_k(BASELINE, k)).estimate for k in KS}
            for method in methods
            if method in regime.methods and method != BASELINE
        }
        for name, regime in regimes.items()
    }
    return plots.pass_at_k_gains(found, BASELINE, plots.looks(methods), width=4.6, height=4.4)


@plots.styled
def over_iterations(regimes: Regimes, scalar: str, label: str, methods: Sequence[str]) -> Figure:
    """A scalar over training, means over seeds, one panel per regime."""
    figure, axes = plots.panels(len(regimes), width=4.2, sharey=True)
    for ax, (name, regime) in zip(axes, regimes.items(), strict=True):
        for method in methods:
            if method in regime.methods:
                values = plots.smoothed(regime.series(method, scalar).mean())
                look = plots.looks(methods)[method]
                ax.plot(values.index, values, label=method, linewidth=1.4, markevery=max(len(values) // 6, 1), **look)
        ax.set(title=name, xlabel="iteration")
    return plots.finished(figure, axes, label, from_zero=True)
