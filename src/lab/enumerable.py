"""Expected updates of whole methods, computed without sampling for policies whose responses can be listed.

A policy is a table of logits, with one row for each prompt and each prefix of a response. The responses are
all words over a small vocabulary. The expectation over a batch then splits into two finite sums: a sum over
the responses to one prompt, and a sum over the verdicts on all other responses, which `objectives` computes.
The advantage strategy, the loss and the importance weights are those of training, in float64.
"""

from dataclasses import replace
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from ..modules.advantages.based import BasedAdvantage
from ..modules.experience import truncated_weights
from ..modules.update import UpdateOptions
from ..types import AdvantageStrategy, Loss, LossInputs, RewardGroups
from .objectives import expected_advantages

MAX_RESPONSES = 4096


class Responses(NamedTuple):
    """All R responses over a vocabulary of V tokens.

    The T tokens of all responses are concatenated. The S states are the prefixes that can be continued.
    """

    tokens: Tensor  # [T] long, 0 … V−1
    states: Tensor  # [T] long, the prefix before each token; 0 is the empty one
    response: Tensor  # [T] long, the response that each token is in, non-decreasing
    lengths: Tensor  # [R] long, tokens per response
    vocabulary: int  # V

    @property
    def table(self) -> tuple[int, int]:
        """Shape (S, V) of one prompt's logits."""
        return int(self.states.max()) + 1, self.vocabulary


def all_responses(vocabulary: int, max_length: int = 1) -> Responses:
    """Return all responses of at most `max_length` tokens. Token 0 or the length limit ends a response.

    Raises:
        ValueError: if there would be more than 4,096 responses.

    >>> responses = all_responses(2, 2)  # 0, 10 and 11
    >>> responses.tokens.tolist(), responses.states.tolist(), responses.lengths.tolist()
    ([0, 1, 0, 1, 1], [0, 0, 1, 0, 1], [1, 2, 2])
    """
    count = sum((vocabulary - 1) ** n for n in range(max_length)) + (vocabulary - 1) ** max_length
    if vocabulary < 2 or max_length < 1 or count > MAX_RESPONSES:
        raise ValueError(
            f"Expected a vocabulary from 2, a length from 1 and at most {MAX_RESPONSES:,} responses, but got "
            f"{vocabulary} and {max_length}, which make {count:,}. Lower one of them."
        )
    prefixes = [prefix for n in range(max_length) for prefix in product(range(1, vocabulary), repeat=n)]
    words = [(*p, token) for p in prefixes for token in range(vocabulary if len(p) == max_length - 1 else 1)]
    states = {prefix: state for state, prefix in enumerate(prefixes)}
    lengths = torch.tensor([len(word) for word in words])
    return Responses(
        tokens=torch.tensor([token for word in words for token in word]),
        states=torch.tensor([states[word[:end]] for word in words for end in range(len(word))]),
        response=torch.arange(len(words)).repeat_interleave(lengths),
        lengths=lengths,
        vocabulary=vocabulary,
    )


def token_logprobs(logits: Tensor, responses: Responses) -> Tensor:
    """Return the log-probs of all tokens for each prompt in nats, [P, T]; `logits` are [P, S, V]."""
    return logits.log_softmax(-1)[:, responses.states, responses.tokens]


def token_entropies(logits: Tensor, responses: Responses) -> Tensor:
    """Return the policy's entropy at each token for each prompt in nats, [P, T]; `logits` are [P, S, V]."""
    logs = logits.log_softmax(-1)
    return -(logs.exp() * logs).sum(-1)[:, responses.states]


def probabilities(logits: Tensor, responses: Responses) -> Tensor:
    """Return the probability of each response to each prompt, [P, R]; every row sums to 1."""
    sums = logits.new_zeros(len(logits), len(responses.lengths))
    return sums.index_add(1, responses.response, token_logprobs(logits, responses)).exp()


def success_rates(logits: Tensor, responses: Responses, correct: Tensor) -> Tensor:
    """Return the probability of a correct response to each prompt, [P], with gradient; `correct` is [R] bool.

    >>> success_rates(torch.zeros(1, 2, 2), all_responses(2, 2), torch.tensor([True, False, True]))  # ½ + ¼
    tensor([0.7500])
    """
    return probabilities(logits, responses) @ correct.to(logits.dtype)


class Policies(NamedTuple):
    """Policies of different age in an update, each as logits [P, S, V] float64; prompt 0 is q0."""

    current: Tensor  # π_θ, which is updated
    old: Tensor  # before the first update of this batch, for ratios; `current` in a first mini-batch
    sampler: Tensor  # μ, which sampled the responses; `old` unless they are stale
    reference: Tensor  # of the KL term


def expected_update(
    policies: Policies | Tensor,
    responses: Responses,
    correct: Tensor,
    strategy: AdvantageStrategy,
    loss: Loss,
    samples: int | Tensor,
    options: UpdateOptions | None = None,
) -> Tensor:
    """Return the negative expected gradient of a mini-batch's loss with respect to the current logits.

    The result is the average effect of `PolicyUpdate`. It is exact for losses in which each term is either
    independent of A, or proportional to |A| for A > 0 and for A < 0, such as `PolicyLoss`: E[loss(A)] =
    loss(E[max(A, 0)]) + loss(E[min(A, 0)]) − loss(0). There are two limits. The normaliser of `token_mean` is
    replaced by its expectation, as with many questions per mini-batch. Random groups are averaged before the
    sign is taken, which is exact if nothing is clipped.

    Args:
        policies: The four policies; a single tensor of logits is used for all of them.
        responses: All possible responses, R ≤ 4,096.
        correct: [R] bool, verdicts, equal for all prompts.
        strategy: Strategy that reads rewards alone.
        loss: Loss over single responses, such as `PolicyLoss`.
        samples: Responses per prompt, one number or [P] long.
        options: Options of the update; `anchor`, `prompt_correction` and `staleness_cap` are used. By
            default, responses are scored at q0 without correction.

    Returns:
        The update in the direction of ascent, [P, S, V] float64.

    >>> from tagrpo.modules.advantages import GroupAdvantage
    >>> from tagrpo.modules.losses import PolicyLoss
    >>> logits, right = torch.zeros(1, 1, 2, dtype=torch.float64), torch.tensor([True, False])
    >>> expected_update(logits, all_responses(2), right, GroupAdvantage(scale="none"), PolicyLoss(kl_coef=0), 4)
    tensor([[[ 0.1875, -0.1875]]], dtype=torch.float64)
    >>> # ∇p = p (1 − p) = ¼, times 1 − 1/4
    """
    options = options or UpdateOptions()
    ages = policies if isinstance(policies, Policies) else [policies] * 4
    policies = Policies(*(table.detach() for table in ages))
    logits = policies.current.requires_grad_()
    count = len(logits)
    score = torch.zeros(count, dtype=torch.long) if options.anchor == "original" else torch.arange(count)
    logprobs, entropies = token_logprobs(logits, responses)[score], token_entropies(logits, responses)[score]
    sampled = probabilities(policies.sampler, responses)
    share = torch.as_tensor(samples).expand(count).double()
    share = (share / share.sum())[:, None] * sampled
    reference = None
    if loss.kl_coef:
        reference = token_logprobs(policies.reference, responses)[score].flatten()
    inputs = LossInputs(
        logprobs=logprobs.flatten(),
        old_logprobs=token_logprobs(policies.old, responses)[score].flatten(),
        reference_logprobs=reference,
        entropy=entropies.flatten(),
        advantages=_by_response(strategy, sampled, correct, samples),
        response=(responses.response + len(responses.lengths) * torch.arange(count)[:, None]).flatten(),
        lengths=responses.lengths.repeat(count),
        num_responses=1.0,
        num_tokens=float((share * responses.lengths).sum()),
        weights=_importance_weights(policies, responses, score, options).flatten(),
    )

    def gradients(advantages: Tensor) -> Tensor:
        """Return the derivatives of the loss in the log-prob and in the entropy of each token, [2, P·T].

        Each response counts once here, whatever its probability.
        """
        leaves = [values.detach().flatten().requires_grad_() for values in (logprobs, entropies)]
        given = replace(inputs, logprobs=leaves[0], entropy=leaves[1], advantages=advantages)
        return torch.stack(torch.autograd.grad(loss(given).loss, leaves, materialize_grads=True))

    positive = _by_response(PositivePart(strategy), sampled, correct, samples)
    negative = inputs.advantages - positive
    by_token = gradients(positive) + gradients(negative) - gradients(torch.zeros_like(positive))
    by_token = by_token * share[:, responses.response].flatten()
    total = (by_token * torch.stack([logprobs.flatten(), entropies.flatten()])).sum()
    return -torch.autograd.grad(total, logits)[0]


def _importance_weights(
    policies: Policies, responses: Responses, score: Tensor, options: UpdateOptions
) -> Tensor:
    """Return the truncated weights of tokens, [P, T], for staleness and for scoring at another prompt.

    Responses to prompt n are scored at prompt `score[n]`; `score` is [P] long.
    """
    sampled = token_logprobs(policies.old, responses)
    weights = (sampled - token_logprobs(policies.sampler, responses)).exp().clamp(max=options.staleness_cap)
    if options.prompt_correction is not None:
        for n, m in enumerate(score.tolist()):
            if n != m:
                weights[n] *= truncated_weights(sampled[m], sampled[n], options.prompt_correction)
    return weights


class PositivePart(BasedAdvantage):
    """Strategy whose advantages are max(A, 0), where A are the advantages of its base."""

    def changed(self, advantages: Tensor, groups: RewardGroups) -> Tensor:  # noqa: ARG002
        """Return the advantages of the base, [R], with 0 in place of negative values."""
        return advantages.clamp(min=0)


def _by_response(
    strategy: AdvantageStrategy, sampled: Tensor, correct: Tensor, samples: int | Tensor
) -> Tensor:
    """Return the expected advantage of each response to each prompt, [P·R]."""
    success = (sampled @ correct.double()).clamp(0, 1)
    given = expected_advantages(strategy, success, samples)
    return torch.where(correct, given.correct[:, None], given.wrong[:, None]).flatten()
