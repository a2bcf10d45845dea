"""Bootstrap intervals, by simulation and at their edges."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from tagrpo.metrics.functional import bootstrap_intervals, intervals, pass_at_k
from tagrpo.metrics.functional.intervals import expanded_tail


def interval_of(values, **options):
    (interval,) = bootstrap_intervals(values[:, None], **options)
    return interval


def coverage(draw, truth, runs):
    """How often the interval of `draw(generator)` holds `truth`."""
    generator = torch.Generator().manual_seed(0)
    hits = 0
    for run in range(runs):
        interval = interval_of(draw(generator), num_resamples=400, seed=run)
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


def test_the_width_is_that_of_the_t_interval():
    for size, quantile in ((400, 1.966), (10, 2.262)):
        values = torch.randn(size, generator=torch.Generator().manual_seed(1))
        interval = interval_of(values, num_resamples=8000)
        expected = 2 * quantile * float(values.std()) / math.sqrt(size)
        assert (interval.high - interval.low) / expected == pytest.approx(1, abs=0.08)


def test_columns_share_their_resamples():
    values = torch.rand(20, generator=torch.Generator().manual_seed(3))
    first, second = bootstrap_intervals(torch.stack([values, values + 1], -1))
    assert second.low - first.low == pytest.approx(1)
    assert second.high - first.high == pytest.approx(1)


def test_sets_weigh_alike_and_are_resampled_apart():
    generator = torch.Generator().manual_seed(1)
    sets = [torch.randn(size, 1, generator=generator) * scale for size, scale in ((30, 1.0), (300, 4.0))]
    (interval,) = bootstrap_intervals(*sets, num_resamples=8000)
    assert interval.value == pytest.approx(float(sum(values.mean() for values in sets) / 2))
    error = math.sqrt(sum(float(values.var()) / len(values) for values in sets)) / 2
    reach = stats.t.ppf(0.975, 29)  # of the smaller set
    assert (interval.high - interval.low) / (2 * reach * error) == pytest.approx(1, abs=0.05)


def test_the_edges():
    assert all(math.isnan(x) for x in interval_of(torch.tensor([])))
    assert interval_of(torch.tensor([0.25])) == (0.25, 0.25, 0.25)


def test_the_defaults_are_a_95_percent_interval_of_2000_resamples():
    values = torch.rand(12, generator=torch.Generator().manual_seed(1))
    expected = interval_of(values, confidence=0.95, num_resamples=2000, seed=0)
    assert interval_of(values) == expected


def test_resamples_may_be_drawn_one_at_a_time(monkeypatch):
    values = torch.rand(20, 2, generator=torch.Generator().manual_seed(1))
    at_once = bootstrap_intervals(values, num_resamples=50)
    monkeypatch.setattr(intervals, "CHUNK", 1)
    assert bootstrap_intervals(values, num_resamples=50) == at_once


@pytest.mark.parametrize(("values", "confidence"), [(2, 0.95), (3, 0.9), (10, 0.5)])
def test_tails_are_those_of_students_interval_in_units_of_the_bootstraps_error(values, confidence):
    reach = stats.t.interval(confidence, values - 1, scale=(1 / values) ** 0.5)[1]  # of values with s = 1
    error = ((values - 1) / values / values) ** 0.5  # of a bootstrap mean: the standard deviation without correction
    assert expanded_tail(values, confidence) == pytest.approx(stats.norm.sf(reach / error))


def test_one_value_has_plain_tails():
    assert expanded_tail(1, 0.9) == pytest.approx(0.05)
