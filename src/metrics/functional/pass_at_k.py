"""Pass@k without bias."""

from __future__ import annotations

import torch
from torch import Tensor


def pass_at_k(num_samples: Tensor | int, num_correct: Tensor | int, k: int) -> Tensor:
    """Probability that at least one of k samples is correct, estimated from n samples with c correct.

    1 − C(n − c, k) / C(n, k), the unbiased estimator of Chen et al. 2021 (arXiv 2107.03374; TA-GRPO, Appendix D).

    Args:
        num_samples: n, an integer or a tensor of them; any shape.
        num_correct: c, likewise, 0 ≤ c ≤ n.
        k: Samples that a user would draw, 1 ≤ k ≤ n.

    Returns:
        float64, of the broadcast shape.

    >>> pass_at_k(4, 1, 2)  # 1 − C(3, 2) / C(4, 2) = 1 − 3 / 6
    tensor(0.5000, dtype=torch.float64)
    """
    n, c = (torch.as_tensor(count, dtype=torch.float64) for count in (num_samples, num_correct))
    device = (n - c).device  # an integer beside a tensor follows it
    n, c = torch.broadcast_tensors(n.to(device), c.to(device))
    if n.numel() and not 1 <= k <= n.min():
        raise ValueError(f"Expected 1 ≤ k ≤ num_samples, but got k={k} with {int(n.min())} samples. Draw more samples.")
    if bool(((c < 0) | (c > n)).any()):
        raise ValueError("Expected 0 ≤ num_correct ≤ num_samples, but some counts lie outside.")
    # C(n−c, k) / C(n, k) = Π_{i<k} (n − c − i) / (n − i); a factor of zero or less means that no k are all wrong.
    i = torch.arange(k, dtype=torch.float64, device=device)
    factors = ((n - c)[..., None] - i).clamp(min=0) / (n[..., None] - i)
    success: Tensor = 1 - factors.prod(-1)
    return success
