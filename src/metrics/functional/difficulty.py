"""Whether the prompts of one question differ in difficulty."""

from __future__ import annotations

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
        [num_questions] float64, in ascending order of question ids; NaN for fewer than two prompts, or where a prompt
        has a single response.

    >>> correct = torch.tensor([True, True, False, False])  # one prompt always right, the other never: var(1, 0)
    >>> difficulty_variance(correct, torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 0, 0]))
    tensor([0.5000], dtype=torch.float64)
    """
    row, prompts = group_index(prompt)
    owner, questions = group_index(question)
    owner = owner.new_zeros(prompts).scatter(0, row, owner)
    sizes = torch.bincount(row, minlength=prompts).double()
    rate = torch.bincount(row, weights=correct.double(), minlength=prompts) / sizes
    noise = rate * (1 - rate) / (sizes - 1)  # 0 / 0, a NaN, for a single response

    def sums(values: Tensor) -> Tensor:
        return values.new_zeros(questions).index_add(0, owner, values)

    count = sums(torch.ones_like(rate))
    deviation = rate - (sums(rate) / count)[owner]
    return sums(deviation.square()) / (count - 1) - sums(noise) / count
