"""Tests of difficulty against enumeration of all tables, and against simulations with and without an effect."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from scipy import stats

from tagrpo.metrics.functional import difficulty_test, difficulty_variance, homogeneity
from tagrpo.metrics.functional.difficulty import DifficultyTest, pooled_difficulty_test


@pytest.mark.parametrize(("sizes", "correct"), [((2, 2), 2), ((3, 1, 2), 2), ((1, 1), 1), ((4, 3, 2), 5), ((5, 2), 6)])
def test_moments_are_those_over_all_ways_to_place_the_correct_responses(sizes, correct):
    total = sum(sizes)
    prompt = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    values = []
    for chosen in combinations(range(total), correct):
        verdict = torch.isin(torch.arange(total), torch.tensor(chosen))
        table = [[int(verdict[prompt == p].sum()), int((~verdict)[prompt == p].sum())] for p in range(len(sizes))]
        values.append(stats.chi2_contingency(table, correction=False).statistic)
        found = homogeneity(verdict, prompt, torch.zeros(total).long())
        assert float(found.statistic) == pytest.approx(values[-1])
    values = torch.tensor(values, dtype=torch.float64)
    assert float(found.mean) == pytest.approx(float(values.mean()))
    assert float(found.variance) == pytest.approx(float(values.var(correction=0)), abs=1e-9)


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
    found = homogeneity(correct, prompt, question)
    assert len(found.statistic) == 1  # question 7
    assert float(found.statistic) == pytest.approx(4.0)


def test_the_statistic_is_divided_by_its_expectation_and_reads_well():
    found = pooled_difficulty_test([4.0, 2.0], [2.0, 1.0], [1.0, 1.0])
    assert (found.statistic, found.questions) == (2.0, 2)
    assert found.p_value == pytest.approx(float(stats.chi2.sf(6 / (2 / 6), 3 / (2 / 6))))
    assert str(DifficultyTest(1.5, 0.25, 3)) == "X² is 1.50 times that of equal difficulty over 3 questions, p = 0.250"
    assert str(DifficultyTest(1.5, 0.001, 3)).endswith("p = 0.001")
    assert str(DifficultyTest(9.0, 0.0009, 3)).endswith("p < 0.001")
    assert str(DifficultyTest(1.0, 1.0, 3)).endswith("p = 1.000")
