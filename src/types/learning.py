"""Inputs and outputs of losses and of token credit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from .data import RewardGroups


@dataclass(frozen=True, kw_only=True)
class LossInputs:
    """Input of a loss: T tokens of a packed micro-batch, or of a part of the micro-batch.

    `num_responses` and `num_tokens` are counts over the whole mini-batch and all ranks, so that the losses of
    parts, micro-batches and ranks add up.
    """

    logprobs: Tensor
    """[T] float32 with gradient, log π_θ of each response token under the score prompt, nats."""
    old_logprobs: Tensor
    """[T] float32, log-probs before the batch's first update, under the score prompt, nats.

    In the first mini-batch, these are `logprobs`, except for replayed responses."""
    reference_logprobs: Tensor | None
    """[T] float32, log-probs under the frozen reference, nats; needed if the KL coefficient is not 0."""
    entropy: Tensor | None
    """[T] float32, policy entropy at each token, nats; with gradient only if `entropy_coef` is not 0."""
    advantages: Tensor
    """[R] float32, one per response of this micro-batch."""
    response: Tensor
    """[T] long, non-decreasing: row of each token's response in `advantages`."""
    lengths: Tensor
    """[R] long, tokens per response, including tokens that are in other parts of the micro-batch."""
    num_responses: float
    """Responses of the mini-batch over all ranks, including responses dropped for lack of gradient."""
    num_tokens: float
    """Response tokens of the mini-batch over all ranks, including tokens of dropped responses."""
    weights: Tensor | None = None
    """[T] float32 without gradient, importance weights of the policy term; None means ones."""
    replayed: Tensor | None = None
    """[R] bool, true for replayed responses, whose `old_logprobs` come from the earlier policy.

    None if no response is replayed."""
    token_advantages: Tensor | None = None
    """[T] float32, advantages per token, which replace `advantages` (`TokenCredit`)."""
    token_terms: Mapping[str, Tensor] = field(default_factory=dict)
    """name → [T] float32, coefficients of terms in the loss of a token (`losses.TOKEN_TERMS`)."""


@dataclass(frozen=True, kw_only=True)
class CreditInputs:
    """Input of token credit: R responses of a rank, and T tokens of the responses that count in the loss.

    The responses are those of one mini-batch. A rank may have none. All tensors are on the CPU.
    """

    groups: RewardGroups
    """Rewards of the R responses, with this rank's ids of questions and prompts.

    `history` is given if the credit or the strategy has `needs_history`."""
    advantages: Tensor
    """[R] float32, output of the advantage strategy on the rewards of all ranks."""
    prompts: Sequence[Tensor]
    """[R] of [L_r] long, score prompts."""
    responses: Sequence[Tensor]
    """[R] of [T_r] long, response tokens."""
    response: Tensor
    """[T] long, non-decreasing: row of each token's response."""
    logprobs: Tensor
    """[T] float32, log π of each token under the score prompt before the batch's first update, nats."""
    entropy: Tensor
    """[T] float32, policy entropy at each token before the batch's first update, nats."""
    texts: Sequence[str] = ()
    """[R] decoded responses."""
    reward_terms: Mapping[str, Tensor] = field(default_factory=dict)
    """name → [R] float32, shaped terms that `groups.rewards` contain besides the verdict."""


class Credit(NamedTuple):
    """Output of token credit for T tokens."""

    advantages: Tensor
    """[T] float32, finite; 0 if a token has no policy gradient."""
    terms: Mapping[str, Tensor] = {}
    """name → [T] float32, see `LossInputs.token_terms`."""


@dataclass(frozen=True, kw_only=True)
class LossOutputs:
    """Loss of a micro-batch, and the sums from which its metrics are computed."""

    loss: Tensor
    """[] float32. The sum over micro-batches and ranks is the loss of the mini-batch."""
    sums: Mapping[str, Tensor]
    """name → [] sum over the response tokens (`kl`, `ratio`, …), without gradient, for means."""
    response_sums: Mapping[str, Tensor] = field(default_factory=dict)
    """name → [R] the same sums over the tokens of each response of this micro-batch."""
