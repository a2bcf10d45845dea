"""What a trainer computes from the batch, in one form for all trainers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of one method of one trainer on the batch of R responses."""

    advantages: Sequence[Tensor]
    """[R] of [T_r] float64, advantage of each token."""
    token_weights: Sequence[Tensor]
    """[R] of [T_r] float64, derivative of the loss by the log-prob of each token."""
    loss: float
    """Loss that the gradient is of."""
    gradient: Mapping[str, Tensor]
    """Name of a parameter → gradient, float64."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Name of a metric of the trainer → value."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Settings of the trainer that gave the outcome."""


@dataclass(frozen=True)
class Difference:
    """Differences between two outcomes of one batch."""

    advantages: float
    """Largest absolute difference of a token's advantage."""
    token_weights: float
    """Largest absolute difference of a token's weight, as a share of the largest weight."""
    loss: float
    """Absolute difference of the losses."""
    gradient: float
    """Norm of the difference of the gradients, as a share of the gradient's norm."""

    @property
    def equal(self) -> bool:
        """Whether advantages agree within 1e-6, weights and gradients within 2e-6."""
        return self.advantages <= 1e-6 and self.token_weights <= 2e-6 and self.gradient <= 2e-6

    @property
    def rounding(self) -> bool:
        """Whether no more than the rounding of our float32 log-probs is left, as with sharp distributions."""
        return self.advantages <= 1e-6 and self.token_weights <= 3e-5 and self.gradient <= 1e-5


def difference(ours: Outcome, theirs: Outcome) -> Difference:
    """Return the differences of two outcomes; the shares are of `theirs`."""
    return Difference(
        advantages=largest(ours.advantages, theirs.advantages),
        token_weights=largest(ours.token_weights, theirs.token_weights) / _scale(theirs.token_weights),
        loss=abs(ours.loss - theirs.loss),
        gradient=gradient_share(ours.gradient, theirs.gradient),
    )


def largest(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Return the largest absolute difference of two lists of tensors; infinity if their shapes differ."""
    if [len(part) for part in one] != [len(part) for part in other]:
        return float("inf")
    return float((torch.cat(list(one)).double() - torch.cat(list(other)).double()).abs().max())


def _scale(values: Sequence[Tensor]) -> float:
    return float(torch.cat(list(values)).abs().max()) or 1.0


def gradient_share(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    """Return ‖ours − theirs‖ / ‖theirs‖ over all parameters; a parameter that one lacks counts as zero."""
    squares = torch.zeros(2, dtype=torch.float64)
    for name in ours.keys() | theirs.keys():
        other = theirs[name] if name in theirs else torch.zeros_like(ours[name])
        own = ours.get(name, torch.zeros_like(other))
        squares[0] += (own.double() - other.double()).square().sum()
        squares[1] += other.double().square().sum()
    return float((squares[0] / squares[1].clamp(min=1e-300)).sqrt()) if squares[0] else 0.0
