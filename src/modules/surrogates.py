"""Policy terms per token: PPO-style clipping over token, sequence or geometric-mean ratios, CISPO, and replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..types import LossInputs

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to ± this before the exponential: e^20 is far outside any clip range, and finite.
Beyond it the gradient through the exponential is zero."""


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """Exp of `log_ratio` clamped to ±`MAX_LOG_RATIO`: no overflow reaches a gradient."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def response_sum(values: Tensor, inputs: LossInputs) -> Tensor:
    """[R] float sums of `values` [T], numbers or flags, over each response."""
    values = values.to(inputs.logprobs.dtype)
    return values.new_zeros(len(inputs.lengths)).index_add(0, inputs.response, values)


def response_mean(values: Tensor, inputs: LossInputs) -> Tensor:
    """[T] each token gets the mean of `values` [T] over its response."""
    return (response_sum(values, inputs) / inputs.lengths)[inputs.response]


class Surrogate(NamedTuple):
    """A policy term per token, to be maximised, before weights and aggregation. Everything is [T]."""

    value: Tensor
    """The term. A response-level term stands at each of the response's tokens."""
    ratio: Tensor
    """Policy ratio that the term is made of."""
    clip_low: Tensor
    """Bool: the lower bound of the clip range acted on this token."""
    clip_high: Tensor


def clipped(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Surrogate:
    """min(ρ A, clip(ρ, 1 − low, 1 + high) A); a token is counted as clipped when that removes its gradient."""
    bounded = ratio.clamp(1 - low, 1 + high)
    return Surrogate(
        value=torch.minimum(ratio * advantages, bounded * advantages),
        ratio=ratio,
        clip_low=(ratio < 1 - low) & (advantages < 0),
        clip_high=(ratio > 1 + high) & (advantages > 0),
    )


def token_surrogate(inputs: LossInputs, advantages: Tensor, low: float, high: float) -> Surrogate:
    """GRPO and TA-GRPO (Eq. 2 and 4): one ratio per token."""
    return clipped(bounded_exp(inputs.logprobs - inputs.old_logprobs), advantages, low, high)


def sequence_surrogate(inputs: LossInputs, advantages: Tensor, low: float, high: float) -> Surrogate:
    """GSPO (arXiv 2507.18071, Eq. 5–7): one length-normalised ratio per response, s = (π_θ(o)/π_old(o))^(1/|o|).

    The term stands at each token, with the value and gradient of GSPO-token unless `weights` vary in a response.
    """
    return clipped(bounded_exp(response_mean(inputs.logprobs - inputs.old_logprobs, inputs)), advantages, low, high)


def geometric_surrogate(inputs: LossInputs, advantages: Tensor, low: float, high: float) -> Surrogate:
    """GMPO (arXiv 2507.20673): A times the geometric mean of the token ratios, each clipped before, in log space.

    The clip range is (e^−low, e^high): its upper bound acts where A > 0, its lower bound where A < 0.
    """
    log_ratio = inputs.logprobs - inputs.old_logprobs
    clip_low = (log_ratio < -low) & (advantages < 0)
    clip_high = (log_ratio > high) & (advantages > 0)
    bounded = torch.where(clip_low | clip_high, log_ratio.clamp(-low, high), log_ratio)
    ratio = bounded_exp(response_mean(bounded, inputs))
    return Surrogate(ratio * advantages, ratio, clip_low, clip_high)


def cispo_surrogate(inputs: LossInputs, advantages: Tensor, low: float, high: float) -> Surrogate:
    """CISPO (arXiv 2506.13585): sg[clip(ρ, 1 − low, 1 + high)] A log π_θ; no token loses its gradient."""
    ratio = bounded_exp(inputs.logprobs - inputs.old_logprobs).detach()
    weight = ratio.clamp(1 - low, 1 + high)
    return Surrogate(weight * advantages * inputs.logprobs, ratio, ratio < 1 - low, ratio > 1 + high)


SURROGATES: dict[tuple[str, str], Callable[[LossInputs, Tensor, float, float], Surrogate]] = {
    ("clip", "token"): token_surrogate,
    ("clip", "sequence"): sequence_surrogate,
    ("clip", "geometric"): geometric_surrogate,
    ("cispo", "token"): cispo_surrogate,
}
"""(objective, ratio) → policy term."""


def replace_replayed(policy: Surrogate, inputs: LossInputs, advantages: Tensor, shaping: float) -> Surrogate:
    """`policy` with A ρ/(ρ + shaping) at the tokens of replayed responses, which are never clipped (ExGRPO)."""
    assert inputs.replayed is not None
    replayed = inputs.replayed[inputs.response]
    ratio = bounded_exp(inputs.logprobs - inputs.old_logprobs)
    return Surrogate(
        value=torch.where(replayed, advantages * ratio / (ratio + shaping), policy.value),
        ratio=torch.where(replayed, ratio, policy.ratio),
        clip_low=policy.clip_low & ~replayed,
        clip_high=policy.clip_high & ~replayed,
    )
