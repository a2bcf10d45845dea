"""A method's path without sampling noise: each update is the expectation of what sampling would have given.

For tasks whose correct responses can all be listed. With a ratio of 1, each response scored under its own prompt, and
equal weights of all tokens, the expected policy gradient is Σ_n w_n ∇p_n (`tagrpo.lab.objectives`); the success rates
p_n and their gradients are sums over the correct responses. Scored under another prompt, the wrong responses count too:
`add_anchored_gradient` takes the likely ones. Means over a response's own length, divergence and entropy terms are not
covered here, but by `tagrpo.lab.enumerable.expected_update`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tagrpo.lab.exact import exact_success, probabilities
from tagrpo.lab.objectives import expected_advantages, expected_weights
from tagrpo.modules.policy.logprobs import PromptedResponses, Scorer
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


def add_anchored_gradient(
    scorer: Scorer,
    prompts: Sequence[Prompt],
    correct: Sequence[Sequence[Tensor]],
    wrong: Sequence[Sequence[Tensor]],
    strategy: AdvantageStrategy,
    max_length: int = 1,
) -> tuple[Tensor, Tensor]:
    """As `add_expected_gradient`, but every response is scored under the original question (`Prompt.anchor_ids`).

    The gradient is Σ_n (G_n / Σ G) Σ_o π(o|q_n) E[A | verdict of o at n] ∇log π(o|q_0). All correct responses are
    summed. The wrong ones in `wrong` stand for the others: their probabilities are scaled up to 1 − p_n.

    Args:
        scorer: Of the policy, at the sampling temperature.
        prompts: [P] of the batch.
        correct: [P], all correct responses to each prompt in tokens.
        wrong: [P], different wrong responses to each prompt, such as those that were sampled.
        strategy: Reads rewards alone.
        max_length: Of the loss.

    Returns:
        [P] float64 twice: the success rates before the step, and the share of the probability that is summed.
    """
    responses = [ids for found in zip(correct, wrong, strict=True) for part in found for ids in part]
    counts = torch.tensor([[len(part) for part in found] for found in zip(correct, wrong, strict=True)])
    prompt = torch.repeat_interleave(counts.sum(1))
    right = torch.cat(
        [torch.arange(int(both)) < one for one, both in zip(counts[:, 0], counts.sum(1), strict=True)]
    )
    p = _probabilities(scorer, [each.token_ids for each in prompts], prompt, responses)
    success, listed = (
        torch.zeros(len(prompts), dtype=torch.float64).index_add(0, prompt, x) for x in (p * right, p)
    )
    missed = ((1 - success) / (listed - success).clamp(min=1e-12)).where(counts[:, 1] > 0, 0.0)
    samples = torch.tensor([each.num_samples for each in prompts])
    question = torch.tensor([each.question for each in prompts])
    advantages = torch.zeros(2, len(prompts), dtype=torch.float64)
    for rows in (question == row for row in question.unique()):
        advantages[:, rows] = torch.stack(
            expected_advantages(strategy, success[rows].clamp(0, 1), samples[rows])
        )
    weights = torch.where(right, advantages[0][prompt], (advantages[1] * missed)[prompt])
    weights = weights * p * (samples / samples.sum())[prompt] / max_length
    scored = PromptedResponses(
        prompts=[each.anchor_ids for each in prompts], prompt=prompt, responses=responses
    )
    for packed, scores in scorer.micro_batches(scored, torch.arange(len(responses))):
        if len(packed.rows):
            by_token = weights[packed.rows].repeat_interleave(packed.lengths).to(scores.logprobs)
            (-by_token * scores.logprobs).sum().backward()
    return success, listed


@torch.no_grad()
def _probabilities(
    scorer: Scorer, prompts: Sequence[Tensor], prompt: Tensor, responses: Sequence[Tensor]
) -> Tensor:
    """[R] float64 of each response under the prompt in its row of `prompt`."""
    scored = PromptedResponses(prompts=prompts, prompt=prompt, responses=responses)
    found = torch.zeros(len(responses), dtype=torch.float64)
    for packed, scores in scorer.micro_batches(scored, torch.arange(len(responses))):
        parts = scores.logprobs.double().cpu().split(packed.lengths.tolist())
        found[packed.rows] = (
            torch.stack([part.sum().exp() for part in parts]) if parts else found[packed.rows]
        )
    return found
