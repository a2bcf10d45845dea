"""Whether the prompts of one question differ in difficulty."""

from __future__ import annotations

from collections.abc import Callable
from math import fsum
from typing import NamedTuple

import torch
from torch import Tensor

from .groups import group_index


def difficulty_variance(correct: Tensor, prompt: Tensor, question: Tensor) -> Tensor:
    """Variance of the true success rate over the prompts of each question, without bias.

    The variance of the observed rates p̂ also holds their sampling noise, which is taken off:
    var(p̂) − mean p̂ (1 − p̂) / (G − 1), for G responses to a prompt. Zero on average where rephrasings change nothing
    (single questions may come out negative); at most ½ with two prompts, ¼ with many. TA-GRPO needs it to be positive
    (§5.2): then a pool is mixed where its original is not.

    Args:
        correct: [R] bool.
        prompt: [R] long, sampled prompt; a prompt belongs to one question.
        question: [R] long.

    Returns:
        [num_questions] float64; NaN for fewer than two prompts, or where a prompt has a single response.

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
    """Of each prompt: responses, correct ones, index of its question; and what sums values of prompts by question."""
    row, prompts = group_index(prompt)
    owner, questions = group_index(question)
    owner = owner.new_zeros(prompts).scatter(0, row, owner)
    sizes = torch.bincount(row, minlength=prompts).double()
    right = torch.bincount(row, weights=correct.double(), minlength=prompts)
    return sizes, right, owner, lambda values: values.new_zeros(questions).index_add(0, owner, values)


class Homogeneity(NamedTuple):
    """Pearson's statistic of each question, with its moments if all prompts of the question were equally difficult."""

    statistic: Tensor
    """[Q] float64, X² of the table of prompts × (correct, wrong)."""
    mean: Tensor
    """[Q] float64."""
    variance: Tensor
    """[Q] float64."""


def homogeneity(correct: Tensor, prompt: Tensor, question: Tensor) -> Homogeneity:
    """Pearson's X² of the success counts over the prompts of each question, and its exact moments under the null.

    Null: given how many of a question's responses are correct, which ones has nothing to do with their prompts (the
    counts are multivariate hypergeometric). Arguments are those of `difficulty_variance`. Left out are questions that
    tell nothing: those with a single prompt, and those with right or with wrong responses alone.

    >>> correct = torch.tensor([True, True, False, False])  # X² = 4, against 0 in 4 of 6 tables and 4 in 2 of them
    >>> homogeneity(correct, torch.tensor([0, 0, 1, 1]), torch.tensor([5, 5, 5, 5]))
    Homogeneity(statistic=tensor([4.], dtype=torch.float64), mean=tensor([1.3333], dtype=torch.float64),
        variance=tensor([3.5556], dtype=torch.float64))
    """
    sizes, right, _, sums = _by_prompt(correct, prompt, question)
    n, c, k = sums(sizes), sums(right), sums(torch.ones_like(sizes))
    # S = Σ c_j² / n_j over prompts j; its moments follow from the factorial moments (c)_a / (n)_a · Π (n_j)_a.
    p1, p2, p3, p4 = (_falling(c, a) / _falling(n, a).clamp(min=1) for a in (1, 2, 3, 4))
    less = sizes - 1  # (n_j)_2 / n_j
    mean = p2 * (n - k) + p1 * k
    own = [sums(_falling(sizes, a) / sizes.square()) for a in (1, 2, 3, 4)]
    square = p4 * own[3] + 6 * p3 * own[2] + 7 * p2 * own[1] + p1 * own[0]
    square = square + p4 * ((n - k).square() - sums(less.square())) + 2 * p3 * (n - k) * (k - 1) + p2 * k * (k - 1)
    scale = n.square() / (c * (n - c))  # X² = scale · (S − c² / n)
    tells = (k > 1) & (c > 0) & (c < n)
    statistic = scale * (sums(right.square() / sizes) - c.square() / n)
    moments = (statistic, scale * (mean - c.square() / n), scale.square() * (square - mean.square()))
    return Homogeneity(*(values[tells] for values in moments))


def _falling(n: Tensor, a: int) -> Tensor:
    """N (n − 1) … (n − a + 1) for whole n; zero when n is below a."""
    return torch.stack([n - i for i in range(a)]).prod(0)


class DifficultyTest(NamedTuple):
    """Whether the prompts of the questions differ in difficulty."""

    statistic: float
    """Σ X² over questions, divided by its expectation if they did not: 1 on average then, larger if they do."""
    p_value: float
    """One-sided; 1 without any informative question."""
    questions: int
    """Informative questions: two prompts or more, right and wrong responses."""

    def __str__(self) -> str:
        p_value = f"p = {self.p_value:.3f}" if self.p_value >= 0.001 else "p < 0.001"
        return f"X² is {self.statistic:.2f} times that of equal difficulty over {self.questions} questions, {p_value}"


def difficulty_test(correct: Tensor, prompt: Tensor, question: Tensor) -> DifficultyTest:
    """Test of the assumption of TA-GRPO (§4, §5.2) that rephrasings shift the difficulty of a question.

    Sums `homogeneity` over questions and compares it with the scaled χ² of the same mean and variance. A small p-value
    says that success depends on the prompt for some questions; not that rephrasings are harder, nor that they are still
    the same problem. Responses must be independent given their prompt. Arguments are those of `difficulty_variance`.

    >>> correct = torch.tensor([True] * 8 + [False] * 8)  # one prompt always right, the other never
    >>> round(difficulty_test(correct, torch.arange(16) // 8, torch.zeros(16).long()).p_value, 5)
    7e-05
    """
    found = homogeneity(correct, prompt, question)
    return pooled_difficulty_test(*(values.tolist() for values in found))


def pooled_difficulty_test(statistic: list[float], mean: list[float], variance: list[float]) -> DifficultyTest:
    """`difficulty_test` from the `Homogeneity` of all questions, in any order."""
    from scipy import stats

    total, expected, spread = fsum(statistic), fsum(mean), fsum(variance)
    if not spread:
        return DifficultyTest(float("nan"), 1.0, len(statistic))
    scale = spread / (2 * expected)
    p_value = float(stats.chi2.sf(total / scale, expected / scale))
    return DifficultyTest(total / expected, p_value, len(statistic))
