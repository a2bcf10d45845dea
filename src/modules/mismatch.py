"""Importance weights between the engine that samples and the trainer that learns: TIS, MIS, IcePop.

Plain torch, for any project whose sampler returns log-probs:

    correction = MismatchCorrection(weight="token", cap=2.0, reject="geometric", low=0.99, high=1.01)
    corrected = correction(logprobs, sampled_logprobs, mask)                 # [B, T] each
    loss = -(advantages * ratio * corrected.weights)[mask].mean()
    self.log_dict(corrected.metrics())

Both log-probs are under the sampled prompt. Departures from verl (docs/algo/rollout_corr.md):

- Bounds apply to π/μ. verl's bounds apply to μ/π.
- Rejected tokens have weight 0 and stay in the normalisers, as in the papers' formulas. verl leaves them out.
- The effective sample size is computed from the weights after truncation and rejection.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ..types.checks import check_choice, check_column, found, name_of
from .losses import KL_ESTIMATORS, MAX_LOG_RATIO, bounded_exp

Level = Literal["token", "sequence", "geometric"]


@dataclass(frozen=True, kw_only=True)
class Corrected:
    """Weights of tokens, without gradient, and the sums from which their metrics are computed."""

    weights: Tensor
    """Float, of the shape of the log-probs: 0 if a token is rejected or padding."""
    sums: Mapping[str, float]
    """Number of `tokens`, and sums over tokens: `weight`, its `square`, `rejected`, `truncated`."""

    def metrics(self) -> dict[str, float]:
        """Return the means per token of `weight`, `rejected` and `truncated`, and `ess`.

        `ess` is the effective sample size per token.
        """
        sums = self.sums
        tokens = max(self.sums["tokens"], 1)
        means = {name: sums[name] / tokens for name in ("weight", "rejected", "truncated")}
        return {**means, "ess": sums["weight"] ** 2 / (tokens * sums["square"]) if sums["square"] else 0.0}


@dataclass(frozen=True, kw_only=True)
class MismatchCorrection:
    """Correction with weights w_t = min(ρ_t, cap), or 0 if a ratio is outside `low` and `high` (rejected).

    π is the trainer's policy before the batch's first update, μ is the engine's policy, and d_t = log π − log
    μ at a token. ρ by level: `token` e^{d_t}; `sequence` e^{Σ d} and `geometric` e^{mean d}, both the same
    for all tokens of a response. Log-ratios are clamped to ± `MAX_LOG_RATIO` before the exponential.

    Weights per token have little variance, but leave a bias, since the preceding tokens were sampled from μ.
    Weights per sequence have no bias except that of the cap, but much variance.

    Args:
        weight: Level of the weights; None gives every token weight 1, so that only rejection acts.
        cap: Upper bound that larger weights are truncated to; None truncates no weight.
        reject: Level of the ratio that is compared with `low` and `high`. `token` rejects tokens; the other
            levels reject responses. `divergence` rejects responses whose mean estimate k3, e^d − 1 − d, is
            above `high`. None rejects nothing.
        low: Smallest ratio that is kept, above 0; None sets no bound.
        high: Largest ratio, or divergence, that is kept.

    Raises:
        ValueError: if options are out of range or contradict each other.

    >>> ratios, sampled = torch.tensor([[3.0, 0.5], [1.2, 1.0]]), torch.zeros(2, 2)
    >>> MismatchCorrection(cap=2.0)(ratios.log(), sampled, torch.tensor([[True, True], [True, False]])).weights
    tensor([[2.0000, 0.5000],
            [1.2000, 0.0000]])
    """

    weight: Level | None = "token"
    cap: float | None = 2.0
    reject: Level | Literal["divergence"] | None = None
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        levels = ("token", "sequence", "geometric")
        check_choice("weight", self.weight or "null", ("null", *levels), "mismatch")
        check_choice("reject", self.reject or "null", ("null", *levels, "divergence"), "mismatch")
        if self.cap is not None and self.cap <= 0:
            raise ValueError(f"Expected mismatch.cap to be null or greater than 0, but got {self.cap}.")
        bounds = [bound for bound in (self.low, self.high) if bound is not None]
        if (
            bool(bounds) != (self.reject is not None)
            or any(bound <= 0 for bound in bounds)
            or sorted(bounds) != bounds
        ):
            raise ValueError(
                "Expected 0 < mismatch.low ≤ mismatch.high, one of them at least, with mismatch.reject and "
                f"only there, but got {self.low} and {self.high} with {self.reject}."
            )
        if self.reject == "divergence" and (self.low is not None or self.high is None):
            raise ValueError(
                f"Expected mismatch.high alone with mismatch.reject=divergence, but got low={self.low}."
            )
        if self.weight is None and self.reject is None:
            raise ValueError(
                "Expected mismatch.weight or mismatch.reject, but both are null. Use mismatch=none."
            )

    def __call__(self, logprobs: Tensor, sampled_logprobs: Tensor, mask: Tensor) -> Corrected:
        """Correct a padded batch of [B, T] log-probs, nats: log π of the trainer and log μ of the engine.

        The gradient of log π is ignored; log μ is what the engine returned. `mask` [B, T] is true or 1 at
        response tokens. Log-probs of half precision are converted to float32, which is then also the type of
        the weights.

        Raises:
            FloatingPointError: see `of_tokens`.
        """
        mask = mask.bool()
        current, sampled = (values.detach()[mask] for values in (logprobs, sampled_logprobs))
        corrected = self.of_tokens(_in_float32(current) - _in_float32(sampled), mask.nonzero()[:, 0])
        weights = corrected.weights.new_zeros(mask.shape).masked_scatter(mask, corrected.weights)
        return Corrected(weights=weights, sums=corrected.sums)

    def of_tokens(self, log_ratio: Tensor, response: Tensor) -> Corrected:
        """Correct T tokens without padding.

        `log_ratio` [T] is d_t of each token. `response`, [T] long, is the row of the response that the token
        belongs to.

        A log-ratio of −∞ (a token that π excludes) is clamped like any other.

        Raises:
            FloatingPointError: if a log-ratio is NaN or +∞, which no probabilities give.
        """
        log_ratio = _in_float32(log_ratio)
        broken = int((log_ratio.isnan() | log_ratio.isposinf()).sum())
        if broken:
            raise FloatingPointError(
                "Expected finite log-probs of the tokens that mismatch weighs, but the log-ratios of "
                f"{broken} of {len(log_ratio)} are NaN or +inf. Check the weights of the policy, "
                "rollout.engine.dtype and the mask."
            )
        weights = torch.ones_like(log_ratio)
        if self.weight is not None:
            weights = bounded_exp(self._at(self.weight, log_ratio, response))
        low = self.low or -math.inf
        high = self.high or math.inf
        cap = self.cap or math.inf
        truncated = weights > cap
        if self.reject is None:
            decisive = weights  # without bounds
        elif self.reject == "divergence":
            estimates = KL_ESTIMATORS["k3"](log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
            decisive = self._at("geometric", estimates, response)
        else:
            decisive = bounded_exp(self._at(self.reject, log_ratio, response))
        rejected = (decisive < low) | (decisive > high)
        weights = weights.clamp(max=cap).masked_fill(rejected, 0.0)
        columns = {
            "weight": weights,
            "square": weights.square(),
            "rejected": rejected,
            "truncated": truncated,
        }
        sums = {name: float(column.double().sum()) for name, column in columns.items()}
        return Corrected(weights=weights, sums={"tokens": float(len(weights)), **sums})

    @staticmethod
    def _at(level: Level, values: Tensor, response: Tensor) -> Tensor:
        """Return `values` [T], or the sum or mean over each token's response, as `level` says."""
        if level == "token":
            return values
        rows = int(response.max()) + 1 if len(response) else 0
        sums = values.new_zeros(rows).index_add(0, response, values)
        return (sums if level == "sequence" else sums / torch.bincount(response, minlength=rows))[response]


def check_corrected(corrected: object, size: int, correction: object) -> Corrected:
    """Check that a correction has returned a finite weight of at least 0 for each of `size` tokens.

    Raises:
        TypeError: if `corrected` is not a `Corrected` with a tensor of weights.
        ValueError: if the weights have a wrong shape, or are not on the CPU.
        FloatingPointError: if a weight is negative or not finite.
    """
    if not isinstance(corrected, Corrected):
        raise TypeError(
            f"Expected {name_of(correction)} (mismatch) to return Corrected, but got {found(corrected)}."
        )
    weights = check_column(corrected.weights, size, correction, "mismatch", "weights")
    negative = int((weights < 0).sum())
    if negative:
        raise FloatingPointError(
            f"Expected {name_of(correction)} (mismatch) to return weights of at least 0, but {negative} are negative."
        )
    return replace(corrected, weights=weights)


def _in_float32(values: Tensor) -> Tensor:
    """Convert half precision, in which e^d of small d is 1, to float32; keep float32 and float64."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
