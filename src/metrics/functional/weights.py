"""How many samples a set of importance weights is worth."""

from __future__ import annotations

from torch import Tensor


def effective_sample_size(log_weights: Tensor) -> Tensor:
    """(Σ w)² / Σ w² of w = exp(log_weights) (Kish): n for equal weights, 1 when one weight is all that counts.

    Args:
        log_weights: [..., n] float, natural logarithms up to a constant; −inf is a weight of zero.

    Returns:
        [...] float64 in 1..n; NaN for no samples, or when all weights are zero.

    >>> effective_sample_size(torch.tensor([0.0, 0.0, -torch.inf]))
    tensor(2., dtype=torch.float64)
    >>> effective_sample_size(torch.tensor([3.0, 1.0]).log())  # 4² / (3² + 1²)
    tensor(1.6000, dtype=torch.float64)
    """
    log_weights = log_weights.double()
    return (2 * log_weights.logsumexp(-1) - (2 * log_weights).logsumexp(-1)).exp()
