"""Intervals over questions, by simulation and at their edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from tagrpo.metrics.functional import pass_at_k, t_intervals


def interval_of(values, **options):
    (interval,) = t_intervals(values[:, None], **options)
    return interval


def coverage(draw, truth, runs):
    """How often the interval of `draw(generator)` holds `truth`."""
    generator = torch.Generator().manual_seed(0)
    hits = 0
    for _ in range(runs):
        interval = interval_of(draw(generator))
        hits += interval.low <= truth <= interval.high
    return hits / runs


def passed(questions, samples, k):
    """Pass@k of benchmark-like questions: most nearly solved or nearly hopeless."""

    def draw(generator):
        solve = torch.sin(torch.rand(questions, generator=generator) * math.pi / 2).square()  # Beta(½, ½)
        correct = (torch.rand(questions, samples, generator=generator) < solve[:, None]).sum(1)
        return pass_at_k(samples, correct, k)

    return draw


@pytest.mark.parametrize(("questions", "k"), [(12, 1), (30, 1), (30, 4), (120, 4)])
def test_pass_at_k_intervals_cover_the_truth_as_often_as_they_say(questions, k):
    grid = (torch.arange(200000, dtype=torch.float64) + 0.5) / 200000
    truth = float((1 - (1 - torch.sin(grid * math.pi / 2).square()) ** k).mean())
    runs = 500
    found = coverage(passed(questions, 8, k), truth, runs)
    # 95 % within three standard deviations of a binomial share, and two points less for few skewed values.
    noise = 3 * math.sqrt(0.95 * 0.05 / runs)
    assert 0.95 - noise - 0.02 < found < 0.95 + noise


def test_skewed_values_are_covered_too():
    assert 0.92 < coverage(lambda generator: torch.rand(25, generator=generator) ** 2, 1 / 3, 500) < 0.98


@pytest.mark.parametrize(("size", "confidence"), [(2, 0.9), (10, 0.95), (400, 0.5)])
def test_an_interval_is_students(size, confidence):
    values = torch.randn(size, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for column, found in zip(values.T.numpy(), t_intervals(values, confidence=confidence), strict=True):
        expected = stats.t.interval(confidence, size - 1, loc=column.mean(), scale=stats.sem(column))
        assert found == pytest.approx((column.mean(), *np.clip(expected, min(column), max(column))))


def test_bounds_stay_among_the_values():
    assert interval_of(torch.tensor([0.0] * 29 + [1.0])).low == 0
    assert interval_of(torch.tensor([1.0] * 29 + [0.0])).high == 1


def test_sets_weigh_alike_and_their_errors_add_up():
    generator = torch.Generator().manual_seed(1)
    sets = [torch.randn(size, 1, generator=generator) * scale for size, scale in ((30, 1.0), (300, 4.0))]
    (interval,) = t_intervals(*sets)
    assert interval.value == pytest.approx(float(sum(values.mean() for values in sets) / 2))
    error = math.sqrt(sum(float(values.var()) / len(values) for values in sets)) / 2
    reach = stats.t.ppf(0.975, 29)  # of the smaller set
    assert (interval.high - interval.low) / (2 * reach * error) == pytest.approx(1)


def test_the_edges():
    assert all(math.isnan(x) for x in interval_of(torch.tensor([])))
    assert interval_of(torch.tensor([0.25])) == (0.25, 0.25, 0.25)
