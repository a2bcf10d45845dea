"""Difficulty of rephrasings over the rollouts of a run."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tagrpo.analysis.rollouts import difficulty_of_run, success_by


def rollouts(rates, samples, seed=0):
    """Rows with success rates [questions, versions]."""
    rng = np.random.default_rng(seed)
    rows = [
        {
            "iteration": q // 4,
            "question": f"q{q}",
            "rephrasing": v,
            "template": "plain",
            "correct": bool(rng.random() < p),
        }
        for q, versions in enumerate(rates)
        for v, p in enumerate(versions)
        for _ in range(samples)
    ]
    return pd.DataFrame(rows)


def test_success_is_the_mean_over_questions_with_an_interval():
    rows = [("a", 0, True), ("a", 0, False), ("b", 0, True), ("b", 1, False), ("b", 1, False)]
    frame = pd.DataFrame(rows, columns=["question", "rephrasing", "correct"])
    found = success_by(frame)
    assert found.loc[0, "correct"] == pytest.approx((0.5 + 1) / 2)
    assert found.loc[1, ["responses", "correct", "low", "high"]].tolist() == [2, 0, 0, 0]


def test_rephrasings_of_other_difficulty_are_found_and_their_spread_estimated():
    rates = np.tile([0.8, 0.5, 0.2, 0.5], (60, 1))
    test, spread = difficulty_of_run(rollouts(rates, 8))
    assert test.p_value < 1e-9
    assert spread == pytest.approx(np.std([0.8, 0.5, 0.2, 0.5], ddof=1), abs=0.03)


def test_equal_rephrasings_are_not():
    rates = np.tile(np.linspace(0.1, 0.9, 60)[:, None], (1, 4))
    test, spread = difficulty_of_run(rollouts(rates, 8))
    assert test.p_value > 0.05
    assert spread < 0.08
