"""The clipped policy loss on packed tokens, with a KL term to a frozen reference.

Every normaliser is an argument counted over the whole mini-batch, so that the losses and gradients of
micro-batches and ranks add up to those of one large batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from ..types import LossInputs, LossOutputs

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to ± this before the exponential: e^20 is far outside any clip range, and finite."""


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """Exp of `log_ratio` clamped to ±`MAX_LOG_RATIO`: no overflow reaches a gradient."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


# Estimators of KL(π_θ ‖ π_ref) from one sampled token; d = log π_ref − log π_θ (Schulman, "Approximating KL").
KL_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": lambda d: -d,
    "k2": lambda d: d.square() / 2,
    "k3": lambda d: bounded_exp(d) - 1 - d,
}


def sequence_weights(
    inputs: LossInputs,
    aggregation: Literal["sequence_mean", "token_mean", "constant"],
    max_length: int | None,
) -> Tensor:
    """[T] what each token's term is multiplied by before everything is summed.

    `sequence_mean`: 1 / (|o_r| · responses), GRPO; `token_mean`: 1 / tokens, DAPO (arXiv 2503.14476, Eq. 8);
    `constant`: 1 / (max_length · responses), Dr. GRPO (arXiv 2503.20783).
    """
    if aggregation == "token_mean":
        return torch.full_like(inputs.old_logprobs, 1 / inputs.num_tokens)
    if aggregation == "constant":
        assert max_length is not None
        return torch.full_like(inputs.old_logprobs, 1 / (max_length * inputs.num_responses))
    return (1 / (inputs.lengths.to(inputs.old_logprobs.dtype) * inputs.num_responses))[inputs.response]


class PolicyLoss:
    """Clipped surrogate with a KL and an entropy term; minimised.

    L = Σ_t w_t · ( −min(ρ_t A, clip(ρ_t, 1 − ε_low, 1 + ε_high) A) + β · KL_t − γ · H_t ),

    ρ_t = π_θ(o_t | score prompt) / π_old(o_t | score prompt); TA-GRPO, Eq. 2 and 4. The weights w_t are those of
    `sequence_weights`.

    `sums` of the outputs: `tokens`, `ratio`, `clip_low` and `clip_high` (tokens whose gradient the clip removed, from
    below with a negative advantage, from above with a positive one), `old_logprob`, and `kl` and `entropy` where
    they were computed.

    Args:
        clip_low: ε_low.
        clip_high: ε_high; larger than `clip_low` is DAPO's clip-higher.
        aggregation: `sequence_mean` | `token_mean` | `constant`.
        kl_coef: β; 0 needs no reference.
        kl_estimator: `k1` | `k2` | `k3`.
        entropy_coef: γ; positive values reward entropy.
        max_length: The constant of `constant`, in tokens.

    Raises:
        ValueError: an option is out of its range, or `constant` lacks its `max_length`.

    >>> inputs = LossInputs(
    ...     logprobs=torch.tensor([1.5]).log().requires_grad_(), old_logprobs=torch.zeros(1), reference_logprobs=None,
    ...     entropy=None, advantages=torch.tensor([2.0]), response=torch.tensor([0]), lengths=torch.tensor([1]),
    ...     num_responses=1, num_tokens=1)
    >>> round(PolicyLoss(kl_coef=0.0)(inputs).loss.item(), 4)  # −min(1.5 · 2, 1.2 · 2)
    -2.4
    """

    def __init__(
        self,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        aggregation: Literal["sequence_mean", "token_mean", "constant"] = "sequence_mean",
        kl_coef: float = 0.001,
        kl_estimator: Literal["k1", "k2", "k3"] = "k3",
        entropy_coef: float = 0.0,
        max_length: int | None = None,
    ) -> None:
        if not 0 <= clip_low <= 1 or clip_high < 0:
            raise ValueError(
                f"Expected 0 ≤ loss.clip_low ≤ 1 and loss.clip_high ≥ 0, but got {clip_low} and {clip_high}."
            )
        if aggregation not in ("sequence_mean", "token_mean", "constant"):
            raise ValueError(
                f"Expected loss.aggregation to be sequence_mean, token_mean or constant, but got {aggregation!r}."
            )
        if kl_estimator not in KL_ESTIMATORS:
            raise ValueError(f"Expected loss.kl_estimator to be k1, k2 or k3, but got {kl_estimator!r}.")
        if kl_coef < 0:
            raise ValueError(f"Expected loss.kl_coef to be at least 0, but got {kl_coef}.")
        if (aggregation == "constant") != (max_length is not None):
            raise ValueError(
                f"Expected loss.max_length with loss.aggregation=constant and only there, but got {max_length} with "
                f"{aggregation}. Set it to the largest number of response tokens."
            )
        self.clip_low = clip_low
        self.clip_high = clip_high
        self.aggregation = aggregation
        self.kl_coef = kl_coef
        self.kl_estimator = kl_estimator
        self.entropy_coef = entropy_coef
        self.max_length = max_length

    def __call__(self, inputs: LossInputs) -> LossOutputs:
        """Loss of one micro-batch, and the sums of its metrics."""
        ratio = bounded_exp(inputs.logprobs - inputs.old_logprobs)
        advantages = inputs.advantages[inputs.response]
        clipped = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        terms = -torch.minimum(ratio * advantages, clipped * advantages)
        if inputs.weights is not None:
            terms = terms * inputs.weights
        sums = {
            "tokens": torch.tensor(float(len(ratio))),
            "ratio": ratio.detach().sum(),
            "clip_low": ((ratio < 1 - self.clip_low) & (advantages < 0)).sum(),
            "clip_high": ((ratio > 1 + self.clip_high) & (advantages > 0)).sum(),
            "old_logprob": inputs.old_logprobs.sum(),
        }
        if inputs.reference_logprobs is not None:
            kl = KL_ESTIMATORS[self.kl_estimator](inputs.reference_logprobs - inputs.logprobs)
            terms = terms + self.kl_coef * kl
            sums["kl"] = kl.detach().sum()
        if inputs.entropy is not None:
            sums["entropy"] = inputs.entropy.detach().sum()
            if self.entropy_coef:
                terms = terms - self.entropy_coef * inputs.entropy
        weights = sequence_weights(inputs, self.aggregation, self.max_length)
        return LossOutputs(loss=(terms * weights).sum(), sums=sums)
