"""A method's path without sampling noise: each update is the expectation of what sampling would have given.

For tasks whose correct responses can all be listed. With a ratio of 1, each response scored under its own prompt, and
equal weights of all tokens, the expected policy gradient is Σ_n w_n ∇p_n (`tagrpo.lab.objectives`); the success rates
p_n and their gradients are sums over the correct responses. Means over a response's own length, scoring under another
prompt, divergence and entropy terms depend on the wrong responses too and are not covered here, but by
`tagrpo.lab.enumerable.expected_update`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tagrpo.lab.exact import exact_success, probabilities
from tagrpo.lab.objectives import expected_weights
from tagrpo.modules.policy.logprobs import Scorer
from tagrpo.types import AdvantageStrategy, Prompt


def add_expected_gradient(
    scorer: Scorer,
    prompts: Sequence[Prompt],
    correct: Sequence[Sequence[Tensor]],
    strategy: AdvantageStrategy,
    max_length: int = 1,
) -> Tensor:
    """Add to the policy's gradients what one batch adds on average, under `PolicyLoss(aggregation="constant")`.

    The mean is over all responses. Pools are within a question: a strategy that pools over the batch is taken as if
    each question were one.

    Args:
        scorer: Of the policy, at the sampling temperature.
        prompts: [P] of the batch; `num_samples` of each is G_n.
        correct: [P], all correct responses to each prompt in tokens; see `BatchSuccess.correct`.
        strategy: Reads rewards alone; a ValueError names others.
        max_length: Of the loss.

    Returns:
        [P] float64, the success rates before the step.
    """
    token_ids = [prompt.token_ids for prompt in prompts]
    success = exact_success(scorer, token_ids, correct, scorer.policy.temperature)
    samples = torch.tensor([prompt.num_samples for prompt in prompts])
    question = torch.tensor([prompt.question for prompt in prompts])
    weights = torch.zeros_like(success)
    for rows in (question == row for row in question.unique()):
        given = expected_weights(strategy, success[rows], samples[rows])
        # A mean over all responses: with unequal samples a prompt weighs as much as it has.
        weights[rows] = given * len(given) * samples[rows] / samples.sum()
    add_success_gradient(scorer, token_ids, correct, (weights / max_length).to(scorer.device))
    return success


def add_success_gradient(
    scorer: Scorer, prompts: Sequence[Tensor], correct: Sequence[Sequence[Tensor]], weights: Tensor
) -> None:
    """Add −∇ Σ_q w_q p_q to the gradients of the policy: a step of a minimising optimizer ascends the weighted success.

    `weights` are the w, [Q] float; the others as of `exact_success`, at the policy's own temperature.
    """
    for part in probabilities(scorer, prompts, correct):
        if part:
            torch.stack([-weights[prompt] * p for prompt, p in part]).sum().backward()
