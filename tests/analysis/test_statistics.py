"""Intervals and verdicts, by simulation, by hand, and against scipy."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, asdict
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tagrpo.analysis.statistics import (
    Comparison,
    Estimate,
    difference,
    estimate,
    holm,
    resampled_means,
    standard_error,
)


def simulated(rng, seeds, questions, mean, seed_noise=0.03, question_noise=0.2, rest=0.05):
    effects = rng.normal(0, seed_noise, (seeds, 1)) + rng.normal(0, question_noise, (1, questions))
    return mean + effects + rng.normal(0, rest, (seeds, questions))


def frame(table):
    return pd.DataFrame(table, index=range(len(table)), columns=[f"q{i}" for i in range(table.shape[1])])


ZERO = frame(np.zeros((1, 40)))


def test_the_bootstrap_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    runs = [estimate(frame(simulated(rng, 4, 60, 0.5))) for _ in range(100)]
    coverage = np.mean([run.low <= 0.5 <= run.high for run in runs])
    assert 0.90 <= coverage <= 0.99


def test_the_bootstrap_has_the_variance_of_a_mean_over_seeds():
    # Two seeds that differ by 2 on all questions: variance of the mean s²/S = 2/2 = 1. Drawing both of them with
    # replacement would give one half.
    table = np.array([[0.0] * 50, [2.0] * 50])
    assert resampled_means(table).var() == pytest.approx(1.0, rel=0.05)


def test_with_one_seed_a_difference_is_the_paired_t_test_over_questions():
    rng = np.random.default_rng(1)
    ours, theirs = rng.random((1, 40)), rng.random((1, 40))
    expected = stats.ttest_rel(ours[0], theirs[0])
    found = difference(frame(ours), frame(theirs))
    assert found.p_value == pytest.approx(expected.pvalue)
    interval = expected.confidence_interval()
    assert (found.estimate.low, found.estimate.high) == pytest.approx((interval.low, interval.high))


def test_with_equal_questions_a_difference_is_the_paired_t_test_over_seeds():
    gains = np.array([0.01, 0.03, 0.05])
    expected = stats.ttest_1samp(gains, 0)
    found = difference(frame(np.repeat(gains[:, None], 30, axis=1)), frame(np.zeros((3, 30))))
    assert found.p_value == pytest.approx(expected.pvalue)


def test_errors_of_seeds_and_questions_add_up():
    # Seed means 0 and 2: variance 2, over 2 seeds 1. Question means 0, 1, 2: variance 1, over 3 questions 1/3.
    table = np.array([[-1.0, 0.0, 1.0], [1.0, 2.0, 3.0]])
    error, freedom = standard_error(table)
    assert error == pytest.approx((1 + 1 / 3) ** 0.5)
    assert freedom == pytest.approx((4 / 3) ** 2 / (1 / 1 + (1 / 3) ** 2 / 2))


def test_several_tables_weigh_alike_and_share_their_seeds():
    # Three seeds; benchmarks of four and of two questions.
    large = np.array([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]])
    small = np.array([[0.0, 0.2], [0.0, 0.0], [0.4, 0.0]])
    found = difference([frame(large), frame(small)], [frame(large * 0), frame(small * 0)])
    assert found.estimate.value == pytest.approx((large.mean() + small.mean()) / 2)
    seeds = np.array([(0.5 + 0.1) / 2, (0.25 + 0) / 2, (0.75 + 0.2) / 2])
    questions = [np.array([1, 2 / 3, 1 / 3, 0]) / 2, np.array([0.4 / 3, 0.2 / 3]) / 2]
    parts = [v.var(ddof=1) / len(v) for v in (seeds, *questions)]
    degrees = sum(parts) ** 2 / sum(v**2 / n for v, n in zip(parts, (2, 3, 1), strict=True))
    reach = stats.t.ppf(0.975, degrees) * sum(parts) ** 0.5
    assert found.estimate.high - found.estimate.value == pytest.approx(reach)
    assert estimate([frame(large), frame(small)]).value == found.estimate.value


def test_the_interval_of_an_average_covers_the_truth_also_where_seeds_move_all_benchmarks():
    rng = np.random.default_rng(0)
    hits, runs = 0, 400
    for _ in range(runs):
        seeds = rng.normal(0, 0.03, (3, 1))
        tables = [frame(0.5 + seeds + rng.normal(0, 0.3, (1, size)) + 0 * seeds) for size in (30, 80, 300)]
        found = difference(tables, [table * 0 for table in tables]).estimate
        hits += found.low <= 0.5 <= found.high
    assert 0.92 < hits / runs < 0.99


@pytest.mark.parametrize(("seeds", "seed_noise"), [(2, 0.01), (3, 0.0), (3, 0.04), (5, 0.04)])
def test_the_interval_of_a_difference_covers_the_truth(seeds, seed_noise):
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(300):
        table = simulated(rng, seeds, 60, 0.1, seed_noise, question_noise=0.1, rest=0.1)
        gap = difference(frame(table), frame(np.zeros_like(table))).estimate
        covered += gap.low <= 0.1 <= gap.high
    assert covered / 300 >= 0.91


def test_questions_are_paired():
    # The noise between questions is ten times the gain: only a paired comparison sees it.
    rng = np.random.default_rng(3)
    theirs = simulated(rng, 3, 100, 0.5, seed_noise=0.0)
    found = difference(frame(theirs + 0.02 + rng.normal(0, 0.02, theirs.shape)), frame(theirs))
    assert found.estimate.low < 0.02 < found.estimate.high
    assert found.p_value < 0.01
    alone = estimate(frame(theirs))
    assert alone.high - alone.low > 3 * (found.estimate.high - found.estimate.low)


def test_questions_are_paired_by_name():
    ours = frame(np.arange(5.0)[None])
    shuffled = ours[["q3", "q0", "q4", "q2", "q1"]]
    assert difference(ours, shuffled).estimate == Estimate(0.0, 0.0, 0.0)


def test_only_common_seeds_count():
    ours = pd.DataFrame([[1.0, 0.0], [0.0, 0.0]], index=[0, 7])
    theirs = pd.DataFrame([[0.5, 0.25], [9.0, 9.0]], index=[7, 8])
    found = difference(ours, theirs)
    assert found.seeds == (7,)
    assert found.estimate.value == pytest.approx(-0.375)


def test_what_cannot_be_paired_is_refused():
    with pytest.raises(ValueError, match="seeds in common"):
        difference(pd.DataFrame([[1.0]], index=[0]), pd.DataFrame([[1.0]], index=[1]))
    with pytest.raises(ValueError, match="only one has q1, q2"):
        difference(pd.DataFrame({"q0": [1.0], "q1": [1.0]}), pd.DataFrame({"q0": [1.0], "q2": [1.0]}))


def test_one_number_decides_nothing_and_no_variance_everything():
    lone = difference(pd.DataFrame([[1.0]]), pd.DataFrame([[0.0]]))
    assert lone.p_value == pytest.approx(1.0)
    assert difference(ZERO + 0.5, ZERO).p_value == 0.0
    assert difference(ZERO, ZERO).p_value == 1.0


def test_holm_is_monotone_and_bounded():
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([0.01, 0.011, 0.012]) == pytest.approx([0.03, 0.03, 0.03])
    assert holm([]) == []


def test_verdicts():
    gap = Estimate(0.1, 0.05, 0.15)
    assert Comparison("a", "b", "pass@k/x/1", gap, 0.049, (0,)).verdict == "higher"
    assert Comparison("a", "b", "pass@k/x/1", gap, 0.05, (0,)).verdict == "undecided"
    assert Comparison("a", "b", "pass@k/x/1", Estimate(-0.1, -0.2, -0.01), 0.01, (0,)).verdict == "lower"


def test_estimates_as_text_and_for_json():
    estimated = Estimate(0.5, -0.25, 0.75)
    assert (str(estimated), estimated.signed) == ("50.0 [-25.0, 75.0]", "+50.0 [−25.0, +75.0]")
    values = {"value": 0.5, "low": -0.25, "high": 0.75}
    assert asdict(estimated) == values


def test_results_cannot_be_changed():
    found = difference(ZERO + 0.5, ZERO)
    compared = Comparison("a", "b", "q", found.estimate, 1.0, (0,))
    for result, name in ((found.estimate, "value"), (found, "p_value"), (compared, "p_value")):
        with pytest.raises(FrozenInstanceError):
            setattr(result, name, 0.0)


def test_an_estimate_is_the_middle_95_percent_of_4000_resamples():
    table = np.random.default_rng(4).random((3, 7))
    means = resampled_means(table)
    assert means.shape == (4000,)
    assert np.array_equal(means, resampled_means(table))
    found = estimate(pd.DataFrame(table))
    assert found.value == pytest.approx(table.mean())
    assert (found.low, found.high) == pytest.approx((np.percentile(means, 2.5), np.percentile(means, 97.5)))


@pytest.mark.parametrize(("values", "variance"), [([0.0, 1.0, 2.0], 1 / 3), ([0.0, 0.0, 3.0, 3.0], 3 / 4)])
def test_resampled_seeds_have_the_variance_of_their_mean(values, variance):
    table = np.repeat(np.array(values)[:, None], 4, axis=1)  # s² / S with Bessel's correction
    assert resampled_means(table).var() == pytest.approx(variance, rel=0.08)


def test_one_seed_is_resampled_over_its_questions():
    means = resampled_means(np.array([[0.0, 2.0] * 50]))
    assert means.mean() == pytest.approx(1.0, abs=0.02)
    assert means.var() == pytest.approx(1 / 100, rel=0.1)


def test_degenerate_standard_errors():
    assert standard_error(np.array([[3.0]])) == (float("inf"), 1.0)
    assert standard_error(np.zeros((2, 3))) == (0.0, 3.0)  # 1 degree of freedom of seeds, 2 of questions
    assert standard_error(np.array([[0.0, 2.0]])) == (1.0, 1.0)


def test_five_odd_questions_are_named_of_more():
    ours = pd.DataFrame([[1.0] * 8], columns=[f"q{i}" for i in range(8)])
    with pytest.raises(ValueError, match=r"q2, q3, q4, q5, q6 \(6"):
        difference(ours, ours[["q0", "q1"]])


@pytest.mark.parametrize(
    ("value", "p_value", "verdict"), [(0.2, 0.04, "higher"), (-0.3, 0.03, "lower"), (0.1, 0.05, "undecided")]
)
def test_a_verdict_needs_a_p_value_below_five_percent(value, p_value, verdict):
    assert Comparison("a", "b", "q", Estimate(value, -1.0, 1.0), p_value, (0,)).verdict == verdict


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_is_what_its_definition_says(p_values):
    ranked = sorted(p_values)
    steps = [min(1.0, max((len(ranked) - j) * ranked[j] for j in range(i + 1))) for i in range(len(ranked))]
    assert sorted(holm(p_values)) == pytest.approx(steps)
    by_size = [corrected for _, corrected in sorted(zip(p_values, holm(p_values), strict=True))]
    assert all(one <= other for one, other in pairwise(by_size))


TABLES = st.tuples(st.integers(1, 3), st.integers(2, 5), st.integers(0, 999))


def table_of(shape):
    seeds, questions, seed = shape
    return np.random.default_rng(seed).random((seeds, questions))


@given(TABLES, st.floats(-5, 5), st.floats(0.1, 9))
@settings(max_examples=15)
def test_an_estimate_moves_and_scales_with_its_values(shape, shift, factor):
    plain, moved = estimate(frame(table_of(shape))), estimate(frame(factor * table_of(shape) + shift))
    assert [moved.value, moved.low, moved.high] == pytest.approx(
        [factor * x + shift for x in (plain.value, plain.low, plain.high)]
    )


@given(TABLES, st.integers(0, 999))
@settings(max_examples=15)
def test_a_difference_changes_its_sign_with_its_sides_and_nothing_else(shape, seed):
    ours, theirs = frame(table_of(shape)), frame(table_of((*shape[:2], seed)))
    one, other = difference(ours, theirs), difference(theirs, ours)
    assert one.p_value == pytest.approx(other.p_value)
    assert [one.estimate.low, one.estimate.high] == pytest.approx([-other.estimate.high, -other.estimate.low])


@given(TABLES, st.floats(0.1, 9))
@settings(max_examples=15)
def test_a_standard_error_knows_no_order_and_no_shift_and_scales(shape, factor):
    table = table_of(shape)
    error, freedom = standard_error(table)
    assert standard_error(table[::-1, ::-1] * factor + 3) == pytest.approx((error * factor, freedom))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.randoms())
def test_corrected_p_values_are_no_smaller_and_go_with_their_comparison(p_values, random):
    corrected_values = holm(p_values)
    assert all(p <= c <= 1 for p, c in zip(p_values, corrected_values, strict=True))
    order = random.sample(range(len(p_values)), len(p_values))
    assert holm([p_values[i] for i in order]) == [corrected_values[i] for i in order]
