"""Intervals over questions by simulation and at their edges; tests of difficulty by enumeration and simulation."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy import stats

from tagrpo.metrics.functional import (
    DifficultyTest,
    difficulty_test,
    difficulty_variance,
    pass_at_k,
    t_intervals,
)


def interval_of(values):
    (interval,) = t_intervals(values[:, None])
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


@pytest.mark.parametrize("size", [2, 10, 400])
def test_an_interval_is_students(size):
    values = torch.randn(size, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for column, found in zip(values.T.numpy(), t_intervals(values), strict=True):
        expected = stats.t.interval(0.95, size - 1, loc=column.mean(), scale=stats.sem(column))
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


@pytest.mark.parametrize(
    ("sizes", "correct"), [((2, 2), 2), ((3, 1, 2), 2), ((1, 1), 1), ((4, 3, 2), 5), ((5, 2), 6)]
)
def test_the_statistic_is_pearsons_and_one_on_average_over_all_ways_to_place_the_correct_responses(
    sizes, correct
):
    total = sum(sizes)
    prompt = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    values = []
    for chosen in combinations(range(total), correct):
        verdict = torch.isin(torch.arange(total), torch.tensor(chosen))
        table = [
            [int(verdict[prompt == p].sum()), int((~verdict)[prompt == p].sum())] for p in range(len(sizes))
        ]
        pearson = stats.chi2_contingency(table, correction=False).statistic * (total - 1) / total
        found = difficulty_test(verdict, prompt, torch.zeros(total).long())
        assert found.statistic == pytest.approx(pearson / (len(sizes) - 1))
        assert found.p_value == pytest.approx(stats.chi2.sf(pearson, len(sizes) - 1))
        values.append(found.statistic)
    assert sum(values) / len(values) == pytest.approx(1)


def responses(rates, samples, generator):
    """Verdicts for [questions, prompts] success rates."""
    questions, prompts = rates.shape
    correct = torch.rand(questions, prompts, samples, generator=generator) < rates[..., None]
    prompt = torch.arange(questions * prompts).repeat_interleave(samples)
    return correct.flatten(), prompt, prompt // prompts


def test_equal_prompts_are_rejected_as_often_as_the_level_says():
    generator = torch.Generator().manual_seed(0)
    p_values = []
    for _ in range(400):
        rates = torch.rand(8, 1, generator=generator).expand(8, 4)  # questions differ, their prompts do not
        p_values.append(difficulty_test(*responses(rates, 8, generator)).p_value)
    rejected = sum(p < 0.05 for p in p_values) / len(p_values)
    assert abs(rejected - 0.05) < 3 * (0.05 * 0.95 / 400) ** 0.5
    assert 0.45 < sum(p_values) / len(p_values) < 0.55


def test_prompts_that_differ_are_found():
    generator = torch.Generator().manual_seed(1)
    rates = torch.rand(40, 4, generator=generator)
    found = difficulty_test(*responses(rates, 8, generator))
    assert found.p_value < 1e-6
    assert found.statistic > 2
    assert found.questions == 40
    reverse = torch.arange(40 * 32).flip(0)
    columns = responses(rates, 8, torch.Generator().manual_seed(1))
    again = difficulty_test(*(column[reverse] for column in columns))
    assert again == difficulty_test(*columns)


def test_without_a_question_that_can_tell_nothing_is_claimed():
    uniform = difficulty_test(torch.tensor([True] * 4), torch.tensor([0, 0, 1, 1]), torch.zeros(4).long())
    assert (uniform.p_value, uniform.questions) == (1.0, 0)


def test_the_variance_of_difficulty_is_unbiased():
    generator = torch.Generator().manual_seed(2)
    rates = torch.tensor([[0.9, 0.5, 0.1, 0.5]]).expand(4000, 4)
    found = difficulty_variance(*responses(rates, 4, generator))
    truth = float(rates[0].var())
    error = float(found.std()) / 4000**0.5
    assert abs(float(found.mean()) - truth) < 4 * error


def test_a_question_with_one_prompt_tells_nothing():
    correct = torch.tensor([True, False, True, True, False, False])
    prompt, question = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([0, 0, 7, 7, 7, 7])
    found = difficulty_test(correct, prompt, question)
    assert (found.questions, found.statistic) == (1, pytest.approx(3.0))  # question 7: X² = 4, times 3 / 4


def test_rare_successes_are_not_taken_for_a_difference():
    generator = torch.Generator().manual_seed(3)
    p_values = [
        difficulty_test(*responses(torch.full((60, 4), 0.04), 8, generator)).p_value for _ in range(200)
    ]
    assert sum(p < 0.05 for p in p_values) <= 0.05 * 200


def test_the_test_reads_well():
    assert (
        str(DifficultyTest(1.5, 0.25, 3))
        == "X² is 1.50 times that of equal difficulty over 3 questions, p = 0.250"
    )
    assert str(DifficultyTest(1.5, 0.001, 3)).endswith("p = 0.001")
    assert str(DifficultyTest(9.0, 0.0009, 3)).endswith("p < 0.001")
    assert str(DifficultyTest(1.0, 1.0, 3)).endswith("p = 1.000")
