"""Confidence intervals over questions, and a test of whether a question's prompts differ in difficulty."""

from collections.abc import Callable
from math import fsum
from typing import NamedTuple

import torch
from scipy import stats
from torch import Tensor

from .groups import group_index


class Interval(NamedTuple):
    """Mean with the bounds of its confidence interval."""

    value: float
    low: float
    high: float


def t_intervals(*sets: Tensor) -> list[Interval]:
    """Return the mean of each column over questions, with Student's 95 % t-interval.

    Args:
        sets: [Q, K] float, one row per question. For several sets, such as benchmarks, the mean is the mean
            of the sets' means. The degrees of freedom are those of the smallest set, which is conservative.

    Returns:
        Mean and bounds of each column. Bounds are cut off at the smallest and the largest value. All are NaN
        if there are no questions; the bounds equal the mean if there is one question. With ten questions, or
        if most questions have the same value, the probability that the bounds contain the true mean is up to
        three percentage points below 95 %.

    >>> t_intervals(torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
    [Interval(value=0.0, low=0.0, high=0.0), Interval(value=1.0, low=1.0, high=1.0)]
    >>> t_intervals(torch.zeros(3, 1), torch.ones(1, 1))
    [Interval(value=0.5, low=0.5, high=0.5)]
    """
    smallest = min(map(len, sets))
    if not smallest:
        return [Interval(torch.nan, torch.nan, torch.nan)] * sets[0].shape[1]
    tables = [table.double().cpu() for table in sets]
    means = torch.stack([table.mean(0) for table in tables]).mean(0)
    lowest = torch.stack([table.amin(0) for table in tables]).mean(0)
    highest = torch.stack([table.amax(0) for table in tables]).mean(0)
    errors = torch.stack(
        [table.var(0, correction=min(1, len(table) - 1)) / len(table) for table in tables]
    ).sum(0)
    reach = float(stats.t.ppf(0.975, max(smallest - 1, 1))) * errors.sqrt() / len(tables)
    bounds = means, (means - reach).clamp(min=lowest), (means + reach).clamp(max=highest)
    return [Interval(*column) for column in torch.stack(bounds, -1).tolist()]


def difficulty_variance(correct: Tensor, prompt: Tensor, question: Tensor) -> Tensor:
    """Return an unbiased estimate of the variance of the true success rate over each question's prompts.

    The variance of the observed rates p̂ also contains their sampling noise, which is subtracted: var(p̂) −
    mean p̂ (1 − p̂) / (G − 1), for G responses to a prompt. The estimate is zero on average if rephrasings do
    not change the success rate (for a single question, it may be negative). It is at most ½ with two prompts,
    and at most ¼ with many prompts. TA-GRPO assumes that the variance is positive (§1): a pool can then have
    both correct and wrong responses although the responses to the original are all correct or all wrong.

    `correct` is [R] bool; `prompt`, the sampled prompt, and `question` are [R] long ids. The result is
    [num_questions] float64, NaN for a question with fewer than two prompts or with a single response to a
    prompt.

    >>> correct = torch.tensor([True, True, False, False])  # one prompt always right, the other never: var(1, 0)
    >>> difficulty_variance(correct, torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 0, 0]))
    tensor([0.5000], dtype=torch.float64)
    """
    sizes, right, owner, sums = _by_prompt(correct, prompt, question)
    rate = right / sizes
    noise = rate * (1 - rate) / (sizes - 1)  # 0 / 0, a NaN, for a single response
    count = sums(torch.ones_like(rate))
    deviation = rate - (sums(rate) / count)[owner]
    return sums(deviation.square()) / (count - 1) - sums(noise) / count


def _by_prompt(
    correct: Tensor, prompt: Tensor, question: Tensor
) -> tuple[Tensor, Tensor, Tensor, Callable[[Tensor], Tensor]]:
    """Return responses, correct responses and question of each prompt, and a function summing by question."""
    row, prompts = group_index(prompt)
    owner, questions = group_index(question)
    owner = owner.new_zeros(prompts).scatter(0, row, owner)
    sizes = torch.bincount(row, minlength=prompts).double()
    right = torch.bincount(row, weights=correct.double(), minlength=prompts)
    return sizes, right, owner, lambda values: values.new_zeros(questions).index_add(0, owner, values)


class DifficultyTest(NamedTuple):
    """Result of a test of whether the prompts of a question differ in difficulty."""

    statistic: float
    """Sum of the adjusted X² over questions, divided by the sum's expectation if prompts do not differ.

    The mean of the statistic is then 1; it is larger if prompts differ."""
    p_value: float
    """One-sided p-value; 1 without any informative question."""
    questions: int
    """Number of informative questions: they have two prompts or more, and both right and wrong responses."""

    def __str__(self) -> str:
        p_value = f"p = {self.p_value:.3f}" if self.p_value >= 0.001 else "p < 0.001"
        return f"X² is {self.statistic:.2f} times that of equal difficulty over {self.questions} questions, {p_value}"


def difficulty_test(correct: Tensor, prompt: Tensor, question: Tensor) -> DifficultyTest:
    """Test the assumption of TA-GRPO (§1) that rephrasings shift the difficulty of a question.

    The statistic of a question with n responses is Pearson's X² of the table prompts × (correct, wrong),
    times (n − 1) / n. If all prompts are equally difficult, the expectation of this statistic is exactly the
    number of degrees of freedom, prompts − 1. The sum over questions is compared with the χ² distribution
    with the sum of the degrees of freedom. The test is conservative if prompts have equally many responses,
    and more conservative if few responses are correct or few are wrong. A small p-value says that success
    depends on the prompt for some questions; it does not say that rephrasings are harder, nor that they are
    still the same problem. Responses must be independent given their prompt. Questions without information
    are left out: questions with a single prompt, and questions with only right or only wrong responses.
    Arguments are those of `difficulty_variance`.

    >>> correct = torch.tensor([True] * 8 + [False] * 8)  # one prompt always right, the other never: X² = 16
    >>> found = difficulty_test(correct, torch.arange(16) // 8, torch.zeros(16).long())
    >>> found.statistic, round(found.p_value, 5)
    (15.0, 0.00011)
    """
    sizes, right, _, sums = _by_prompt(correct, prompt, question)
    n = sums(sizes)
    c = sums(right)
    k = sums(torch.ones_like(sizes))
    tells = (k > 1) & (c > 0) & (c < n)
    # X² = (Σ c_j² / n_j − c² / n) · n² / (c (n − c)) over prompts j
    adjusted = (sums(right.square() / sizes) - c.square() / n) * n * (n - 1) / (c * (n - c))
    total = fsum(adjusted[tells].tolist())
    freedom = float((k - 1)[tells].sum())
    if not freedom:
        return DifficultyTest(float("nan"), 1.0, 0)
    return DifficultyTest(total / freedom, float(stats.chi2.sf(total, freedom)), int(tells.sum()))
