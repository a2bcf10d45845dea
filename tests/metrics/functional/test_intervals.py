"""The bootstrap interval, by simulation and at its edges."""

from __future__ import annotations

import math

import torch

from tagrpo.metrics.functional import bootstrap_interval


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    generator = torch.Generator().manual_seed(0)
    hits, runs = 0, 200
    for _ in range(runs):
        values = torch.rand(60, generator=generator) ** 2  # mean 1/3
        interval = bootstrap_interval(values, num_resamples=400)
        hits += interval.low <= 1 / 3 <= interval.high
    # Three standard deviations of a binomial share around 95 %, and a little undercoverage of the percentile method.
    assert 0.88 < hits / runs <= 1.0


def test_the_width_is_that_of_the_normal_approximation():
    values = torch.randn(400, generator=torch.Generator().manual_seed(1))
    interval = bootstrap_interval(values, num_resamples=4000)
    expected = 2 * 1.96 * float(values.std()) / math.sqrt(400)
    assert abs((interval.high - interval.low) / expected - 1) < 0.08


def test_no_questions_have_no_interval():
    assert all(math.isnan(x) for x in bootstrap_interval(torch.tensor([])))
