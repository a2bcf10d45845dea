"""Intervals and verdicts, by simulation and by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tagrpo.analysis.statistics import difference, estimate, holm, paired_table


def simulated(rng, seeds, questions, mean, seed_noise=0.03, question_noise=0.2):
    effects = rng.normal(0, seed_noise, (seeds, 1)) + rng.normal(0, question_noise, (1, questions))
    return mean + effects + rng.normal(0, 0.05, (seeds, questions))


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    runs = [estimate(simulated(rng, 8, 60, 0.5)) for _ in range(150)]
    coverage = np.mean([run.low <= 0.5 <= run.high for run in runs])
    assert 0.88 <= coverage <= 1.0


def test_questions_are_paired():
    # The noise between questions is twenty times the gain: only a paired comparison sees it.
    rng = np.random.default_rng(1)
    theirs = simulated(rng, 3, 100, 0.5, seed_noise=0.0)
    gap, p = difference(theirs + 0.02 + rng.normal(0, 0.02, theirs.shape), theirs)
    assert gap.low < 0.02 < gap.high
    assert p < 0.01
    single, _ = estimate(theirs), None
    assert single.high - single.low > 3 * (gap.high - gap.low)


def test_no_difference_is_rarely_called_one():
    rng = np.random.default_rng(2)
    calls = 0
    for _ in range(100):
        questions = rng.normal(0.5, 0.2, (1, 60))
        tables = [questions + rng.normal(0, 0.1, (5, 60)) + rng.normal(0, 0.02, (5, 1)) for _ in range(2)]
        calls += difference(*tables)[1] < 0.05
    assert calls <= 16


def test_unequal_numbers_of_seeds_compare_their_means():
    ours, theirs = np.array([[1.0, 0.0], [0.0, 0.0]]), np.array([[0.5, 0.5]])
    assert difference(ours, theirs)[0].value == pytest.approx(-0.25)


def test_holm_is_monotone_and_bounded():
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([0.01, 0.011, 0.012]) == pytest.approx([0.03, 0.03, 0.03])
    assert holm([]) == []


def test_different_questions_are_refused():
    with pytest.raises(ValueError, match="same questions"):
        paired_table([pd.Series({"a": 1.0}), pd.Series({"b": 1.0})])
