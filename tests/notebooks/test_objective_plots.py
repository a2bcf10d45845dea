"""Figures of objectives show what the exact weights are."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from notebooks.objective_plots import Setting, plot_pooling, plot_weights, pooling, weight_curve
from tagrpo.modules.advantages import GroupAdvantage

pytestmark = pytest.mark.pages


def test_methods_of_one_curve_share_a_line():
    settings = {
        "GRPO": Setting(GroupAdvantage("prompt"), 1, 4),
        "GSPO": Setting(GroupAdvantage("question"), 1, 4),
        "RLOO": Setting(GroupAdvantage(baseline="leave_one_out", scale="none"), 1, 4),
        "TA-GRPO": Setting(GroupAdvantage("question"), 2, 4),
    }
    figure = plot_weights(settings, points=3)
    labels = [[line.get_label() for line in ax.lines] for ax in figure.axes]
    assert labels == [["GRPO, GSPO", "RLOO"], ["TA-GRPO"]]
    assert figure.axes[0].lines[1].get_ydata() == pytest.approx([1.0] * 3)
    half = torch.tensor([0.5], dtype=torch.float64)
    assert figure.axes[1].lines[0].get_ydata()[1] == pytest.approx(
        float(weight_curve(settings["TA-GRPO"], half))
    )


def test_pooling_with_easy_rephrasings_leaves_no_question_silent_and_weighs_the_original_less():
    (row,) = pooling([0.01], [0.5], 3, 8).to_dict("records")
    assert row["alone/no_gradient"] == pytest.approx(0.99**8 + 0.01**8)
    assert row["pooled/no_gradient"] == pytest.approx(0.99**8 * 0.5**24 + 0.01**8 * 0.5**24)
    assert row["pooled/weight"] < row["alone/weight"] < row["matched/weight"]
    assert row["alone/offset"] == pytest.approx(0, abs=1e-12)
    assert row["pooled/offset"] < -0.7
    assert row["pooled/about_verdict"] < 0.1 < 0.8 < row["alone/about_verdict"]


def test_the_share_about_the_verdict_is_a_squared_correlation():
    (row,) = pooling([0.4], [0.7], 1, 2).to_dict("records")
    rewards = np.array(list(product((0.0, 1.0), repeat=4)))
    probability = np.where(rewards == 1, [0.4, 0.4, 0.7, 0.7], [0.6, 0.6, 0.3, 0.3]).prod(1)
    first = (rewards[:, 0] - rewards.mean(1)) / (rewards.std(1, ddof=1) + 1e-6)
    covariance = probability @ (first * (rewards[:, 0] - 0.4))  # E[A²], not its variance: an offset is noise
    expected = covariance**2 / (0.4 * 0.6) / (probability @ first**2)
    assert row["pooled/about_verdict"] == pytest.approx(expected, rel=1e-12)


def test_the_map_of_pooling_has_two_panels():
    figure = plot_pooling(num_rephrasings=1, samples=2, points=3)
    assert [ax.get_title() for ax in figure.axes[:2]] == [
        "weight, pooled / alone",
        "share about the verdict, pooled",
    ]
