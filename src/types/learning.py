"""Inputs and outputs of losses and of credit per token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from .data import RewardGroups


@dataclass(frozen=True, kw_only=True)
class LossInputs:
    """T tokens of a packed micro-batch, all or some. Normalisers are global: parts, micro-batches and ranks add up."""

    logprobs: Tensor
    """[T] float32 with gradient, log π_θ of each response token under the score prompt, nats."""
    old_logprobs: Tensor
    """[T] float32, the same before this batch's first update: `logprobs` in the first mini-batch, unless replayed."""
    reference_logprobs: Tensor | None
    """[T] float32, the same under the frozen reference policy; needed when the KL coefficient is not zero."""
    entropy: Tensor | None
    """[T] float32, policy entropy at each token, nats; with gradient only when its coefficient is not zero."""
    advantages: Tensor
    """[R] float32, one per response of this micro-batch."""
    response: Tensor
    """[T] long, non-decreasing: row of each token's response in `advantages`."""
    lengths: Tensor
    """[R] long, tokens per response, including tokens that are in other parts of the micro-batch."""
    num_responses: float
    """Responses of the mini-batch over all ranks, including those dropped for lack of gradient."""
    num_tokens: float
    """Response tokens of the mini-batch over all ranks, likewise."""
    weights: Tensor | None = None
    """[T] float32 without gradient, importance weights that multiply the policy term; None means ones."""
    replayed: Tensor | None = None
    """[R] bool, responses of an earlier policy, whose log-probs `old_logprobs` are; None means none."""
    token_advantages: Tensor | None = None
    """[T] float32, advantages per token, which take the place of `advantages` (`TokenCredit`)."""
    token_terms: Mapping[str, Tensor] = field(default_factory=dict)
    """name → [T] float32, coefficients of terms that are added to the loss of a token (`losses.TOKEN_TERMS`)."""


@dataclass(frozen=True, kw_only=True)
class CreditInputs:
    """Input of token credit: R responses of this rank, and the T tokens of those that count in the loss.

    The responses are those of one mini-batch. A rank may have none. All tensors are on the CPU.
    """

    groups: RewardGroups
    """Rewards of the R responses; ids of questions and prompts are those of this rank. `history` is given where the
    credit or the strategy has `needs_history`."""
    advantages: Tensor
    """[R] float32, what the advantage strategy made of the rewards of all ranks."""
    prompts: Sequence[Tensor]
    """[R] of [L_r] long, score prompts."""
    responses: Sequence[Tensor]
    """[R] of [T_r] long, response tokens."""
    response: Tensor
    """[T] long, non-decreasing: row of each token's response."""
    logprobs: Tensor
    """[T] float32, log π of each token under the score prompt before the batch's first update, nats."""
    entropy: Tensor
    """[T] float32, entropy of the same policy at each token, nats."""
    texts: Sequence[str] = ()
    """[R] decoded responses."""
    reward_terms: Mapping[str, Tensor] = field(default_factory=dict)
    """name → [R] float32, the shaped terms that `groups.rewards` hold beside the verdict."""


class Credit(NamedTuple):
    """Output of token credit for the T tokens that it was given."""

    advantages: Tensor
    """[T] float32, finite; 0 if a token has no policy gradient."""
    terms: Mapping[str, Tensor] = {}
    """name → [T] float32, see `LossInputs.token_terms`."""


@dataclass(frozen=True, kw_only=True)
class LossOutputs:
    """The loss of a micro-batch and the sums that its metrics are made of."""

    loss: Tensor
    """[] float32. Summed over micro-batches and ranks it is the loss of the mini-batch."""
    sums: Mapping[str, Tensor]
    """name → [] sum over the response tokens (`kl`, `ratio`, …), without gradient, of which means are made."""
    response_sums: Mapping[str, Tensor] = field(default_factory=dict)
    """name → [R] the same sums over the tokens of each response of this micro-batch."""
