"""Figures and tables of what methods optimise: weights over success rates, and what a shared pool does to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import NamedTuple

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from tagrpo.analysis.plots import looks, panels, styled
from tagrpo.lab.objectives import expected_advantages, expected_weights
from tagrpo.metrics.functional import zero_gradient_probability
from tagrpo.modules.advantages import GroupAdvantage
from tagrpo.types import AdvantageStrategy, RewardGroups


class Setting(NamedTuple):
    """A strategy, and the responses that it sees of a question."""

    strategy: AdvantageStrategy
    prompts: int  # the original question and its rephrasings, N + 1
    samples: int  # responses per prompt, G


def weight_curve(setting: Setting, success: Tensor) -> Tensor:
    """[S] float64, Σ_n w_n where all prompts of a question have the success rates `success` [S]."""
    weights = [
        expected_weights(setting.strategy, rate.expand(setting.prompts), setting.samples) for rate in success
    ]
    return torch.stack(weights).sum(1)


@styled
def plot_weights(settings: Mapping[str, Setting], points: int = 33) -> Figure:
    """w(p) of each method, one panel per shape of pool; methods of the same curve share a line.

    `points` success rates are evenly spaced between 0 and 1 without the ends.
    """
    success = torch.linspace(0, 1, points + 2, dtype=torch.float64)[1:-1]
    shapes = dict.fromkeys((setting.prompts, setting.samples) for setting in settings.values())
    figure, axes = panels(len(shapes), width=4.0, height=4.4, sharey=True)
    for ax, (prompts, samples) in zip(axes, shapes, strict=True):
        curves: list[tuple[list[str], Tensor]] = []
        for name, setting in settings.items():
            if (setting.prompts, setting.samples) != (prompts, samples):
                continue
            curve = weight_curve(setting, success)
            same = [names for names, other in curves if torch.allclose(curve, other)]
            same[0].append(name) if same else curves.append(([name], curve))
        labels = [fill(", ".join(names), 44) for names, _ in curves]
        for (label, look), (_, curve) in zip(looks(labels).items(), curves, strict=True):
            ax.plot(success, curve, label=label, linewidth=1.5, markevery=4, **look)
        ax.set(title=f"{prompts} prompt{'s' * (prompts > 1)} × {samples} responses", xlabel="success rate p")
        ax.set_yscale("log")
        ax.set_ylim(1e-2, 10)
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize=7)
    axes[0].set_ylabel("w(p), weight on ∇p")
    return figure


def pooling(
    original: Sequence[float], rephrasings: Sequence[float], num_rephrasings: int, samples: int
) -> pd.DataFrame:
    """Effect of a pool with rephrasings of another difficulty on the responses to the original question.

    One row per pair of success rates (those of all rephrasings are equal): `original, rephrasings`, and with
    normalisation over the pool (`pooled`) and over the prompt alone (`alone`): `weight`, E[A | correct] − E[A | wrong]
    at the original; `offset`, E[A] of its responses; `about_verdict`, the squared correlation of A with their verdicts:
    the share of the advantages that is not noise; `no_gradient`, the probability that all of the pool's rewards are
    equal. `matched/weight` is that of the original alone with as many responses as the pool has.
    """
    rows = []
    for p0 in original:
        for p1 in rephrasings:
            success = torch.tensor([p0] + [p1] * num_rephrasings, dtype=torch.float64)
            row = {"original": p0, "rephrasings": p1}
            for name, rates in (("pooled", success), ("alone", success[:1])):
                row |= {f"{name}/{column}": value for column, value in _moments(rates, samples).items()}
            row["matched/weight"] = _moments(success[:1], samples * len(success))["weight"]
            rows.append(row)
    return pd.DataFrame(rows)


class Squared(AdvantageStrategy):
    """A² of GRPO's advantages over the question."""

    def __call__(self, groups: RewardGroups) -> Tensor:
        """[R] squares."""
        return GroupAdvantage()(groups).square()


def _moments(success: Tensor, samples: int) -> dict[str, float]:
    p = float(success[0])
    (right, wrong), (right2, wrong2) = (
        [float(values[0]) for values in expected_advantages(strategy, success, samples)]
        for strategy in (GroupAdvantage(), Squared())
    )
    square = p * right2 + (1 - p) * wrong2
    return {
        "weight": right - wrong,
        "offset": p * right + (1 - p) * wrong,
        "about_verdict": (right - wrong) ** 2 * p * (1 - p) / square if square else 0.0,
        "no_gradient": float(zero_gradient_probability(success, samples)),
    }


@styled
def plot_pooling(num_rephrasings: int = 3, samples: int = 8, points: int = 9) -> Figure:
    """Maps over the success rates of a question and of its rephrasings; where they are equal, on the diagonal.

    Left: the original's weight in the pool over its weight alone; the line is where pooling changes nothing. Right: the
    share of its advantages that is about its verdicts, in the pool.
    """
    rates = torch.linspace(0, 1, points + 2)[1:-1].tolist()
    frame = pooling(rates, rates, num_rephrasings, samples)
    frame["gain"] = frame["pooled/weight"] / frame["alone/weight"]
    figure, axes = panels(2, width=3.9, height=3.3)
    titles = {"gain": "weight, pooled / alone", "pooled/about_verdict": "share about the verdict, pooled"}
    for ax, (column, title) in zip(axes, titles.items(), strict=True):
        table = frame.pivot(index="original", columns="rephrasings", values=column)
        image = ax.pcolormesh(rates, rates, table, cmap="cividis", shading="nearest")
        if column == "gain":
            ax.contour(rates, rates, table, levels=[1.0], colors="white")
        ax.plot(rates, rates, color="white", linestyle=":")
        ax.set(title=title, xlabel="success rate of the rephrasings", ylabel="success rate of the original")
        ax.grid(visible=False)
        figure.colorbar(image, ax=ax)
    return figure
