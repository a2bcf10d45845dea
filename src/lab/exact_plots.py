"""The figures of exact pass@k, of runs whose correct responses could be listed."""

from __future__ import annotations

import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from ..analysis.comparison import Curves, Methods, Runs
from ..analysis.plots import Styles, error_bars, finished, looks, panels, seeds_and_mean, styled
from ..analysis.runs import RunFiles
from ..metrics.functional import exact_pass_at_k

KS = [round(10 ** (step / 4)) for step in range(25)]
"""1 … 10^6, evenly on a logarithmic axis."""
FOLLOWED = (1, 1000)
"""k of the curves over training."""


def with_exact(runs: Runs) -> dict[str, list[RunFiles]]:
    """The runs that wrote exact success probabilities."""
    found = {method: [run for run in seeds if run.exact] for method, seeds in runs.items()}
    return {method: seeds for method, seeds in found.items() if seeds}


def success_of(run: RunFiles, split: str, evaluation: int = -1) -> torch.Tensor:
    """[Q] float64, the exact success of each question of a split."""
    questions = run.exact[evaluation]["splits"][split]["questions"]
    return torch.tensor([row["success"] for row in questions], dtype=torch.float64)


def pictures(methods: Methods) -> dict[str, tuple[Figure, str]]:
    """File name → plot and its caption, of a comparison; empty without exact probabilities."""
    exact, styles = with_exact(methods.runs), looks(methods.runs)
    if not exact:
        return {}
    split = next(iter(methods.curves))
    return {
        "exact.png": (
            exact_curves(exact, methods.curves, styles),
            "Pass@k from the probabilities of all correct responses (lines: means over questions and seeds), beside "
            "the sampled estimates (markers, with 95 % intervals).",
        ),
        "exact_training.png": (
            exact_over_training(exact, split, styles),
            f"Exact pass@k of {split} at each evaluation; thick: mean over seeds.",
        ),
    }


@styled
def exact_curves(runs: Runs, sampled: Curves, styles: Styles) -> Figure:
    """Exact pass@k for k to 10^6 as lines, means over questions and seeds; as markers the sampled estimates."""
    exact = next(iter(runs.values()))[0].exact[-1]["splits"]
    shown = {split: methods for split, methods in sampled.items() if split in exact}
    figure, axes = panels(len(shown))
    for ax, (split, methods) in zip(axes, shown.items(), strict=True):
        for method, seeds in runs.items():
            curve = torch.stack([exact_pass_at_k(success_of(run, split), KS).mean(0) for run in seeds]).mean(0)
            look = {**styles[method], "marker": ""}
            ax.plot(KS, 100 * curve.numpy(), label=method, linewidth=1.5, **look)
            points = methods[method]
            look = {**styles[method], "linestyle": "", "elinewidth": 0.9}
            values = [100 * e.value for e in points.values()]
            ax.errorbar(list(points), values, error_bars(*points.values()), **look)
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(numticks=7))
        ax.set(title=split, xlabel="k")
    return finished(figure, axes, "pass@k (%)", from_zero=True)


def pass_at_k_over_training(run: RunFiles, split: str, k: int) -> pd.Series[float]:
    """Iteration → exact pass@k in percent, mean over the questions of a split."""
    means = [100 * float(exact_pass_at_k(success_of(run, split, row), [k]).mean()) for row in range(len(run.exact))]
    return pd.Series(means, [found["iteration"] for found in run.exact])


@styled
def exact_over_training(runs: Runs, split: str, styles: Styles) -> Figure:
    """Exact pass@k of one split over training, one panel per k of `FOLLOWED`; seeds thin and their mean thick."""
    figure, axes = panels(len(FOLLOWED))
    for ax, k in zip(axes, FOLLOWED, strict=True):
        for method, seeds in runs.items():
            series = [pass_at_k_over_training(run, split, k) for run in seeds]
            seeds_and_mean(ax, series, {"label": method, **styles[method]})
        ax.set(title=f"{split} pass@{k}", xlabel="iteration")
    return finished(figure, axes, "pass@k (%), exact")
