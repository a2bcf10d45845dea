"""Pass@k: unbiased estimates from samples, and exact values from success probabilities."""

from collections.abc import Sequence

import torch
from torch import Tensor


def pass_at_k(num_samples: Tensor | int, num_correct: Tensor | int, k: int) -> Tensor:
    """Return the unbiased estimate of pass@k from n samples, c of which are correct.

    Pass@k is the probability that at least one of k samples is correct. The estimator is 1 − C(n − c, k) /
    C(n, k) (Chen et al. 2021, arXiv 2107.03374; TA-GRPO, Appendix D), for 1 ≤ k ≤ n and 0 ≤ c ≤ n, integers
    or tensors of any shape. Returns float64 of the broadcast shape.

    Raises:
        ValueError: if k or c is outside its range.

    >>> pass_at_k(4, 1, 2)  # 1 − C(3, 2) / C(4, 2) = 1 − 3 / 6
    tensor(0.5000, dtype=torch.float64)
    """
    n, c = (torch.as_tensor(count, dtype=torch.float64) for count in (num_samples, num_correct))
    device = (n - c).device  # an integer beside a tensor follows it
    n, c = torch.broadcast_tensors(n.to(device), c.to(device))
    if n.numel() and not 1 <= k <= n.min():
        raise ValueError(
            f"Expected 1 ≤ k ≤ num_samples, but got k={k} with {int(n.min())} samples. Draw more samples."
        )
    if bool(((c < 0) | (c > n)).any()):
        raise ValueError("Expected 0 ≤ num_correct ≤ num_samples, but some counts lie outside.")
    # C(n−c, k) / C(n, k) = Π_{i<k} (n − c − i) / (n − i); a factor of zero or less means that no k are all
    # wrong.
    i = torch.arange(k, dtype=torch.float64, device=device)
    factors = ((n - c)[..., None] - i).clamp(min=0) / (n[..., None] - i)
    success: Tensor = 1 - factors.prod(-1)
    return success


def exact_pass_at_k(success: Tensor, ks: Sequence[int]) -> Tensor:
    """Return the probability that at least one of k independent responses is correct, 1 − (1 − p)^k.

    The value is computed as −expm1(k · log1p(−p)), with the relative precision of float64 for any p and k:
    neither a small p nor a large k loses digits. `success` is [Q] float, p of each question, 0..1; each of
    `ks` is at least 1. Returns [Q, len(ks)] float64.

    Raises:
        ValueError: if p or k is outside its range.

    >>> exact_pass_at_k(torch.tensor([0.5, 1e-6], dtype=torch.float64), [1, 2, 10**6])
    tensor([[5.0000e-01, 7.5000e-01, 1.0000e+00],
            [1.0000e-06, 2.0000e-06, 6.3212e-01]], dtype=torch.float64)
    """
    p = success.double()
    odd = ~((p >= 0) & (p <= 1))
    if odd.any():
        raise ValueError(f"Expected success probabilities between 0 and 1, but got {p[odd][:3]}.")
    if not ks or min(ks) < 1:
        raise ValueError(f"Expected ks to hold integers of at least 1, but got {list(ks)}.")
    return -torch.expm1(torch.log1p(-p)[:, None] * torch.tensor(ks, dtype=torch.float64, device=p.device))


def cover_at_tau(success: Tensor, taus: Sequence[float]) -> Tensor:
    """Return 1[p ≥ τ] for each question and each τ: 1 if the success rate p is at least τ, otherwise 0.

    The mean over questions is Cover@τ (arXiv 2510.08325, abstract): breadth at a required reliability. Pass@k
    is a mean of Cover@τ, k ∫ (1 − τ)^(k−1) Cover@τ dτ, with most of its weight at small τ.

    If `success` is correct / samples, the mean is the share of questions for which at least a share τ of the
    completions is correct, as the abstract defines Cover@τ. It is not an unbiased estimate of Cover@τ for the
    true p. No unbiased estimate exists: the mean of any statistic of n draws is a polynomial of p, but 1[p ≥
    τ] is not.

    Args:
        success: Success rate p of each question, [Q] float, 0..1.
        taus: Values of τ, 0..1. Every question has p ≥ 0, so that the result for τ = 0 is 1.

    Returns:
        [Q, len(taus)] float64.

    Raises:
        ValueError: if p or τ is not in 0..1.

    >>> cover_at_tau(torch.tensor([3, 8]) / 10, [0.1, 0.3, 0.5]).mean(0)
    tensor([1.0000, 1.0000, 0.5000], dtype=torch.float64)
    """
    thresholds = success.new_tensor(taus)  # in the precision of p, so that 7 / 10 reaches 0.7
    odd = ~((success >= 0) & (success <= 1))
    if odd.any():
        raise ValueError(f"Expected success probabilities between 0 and 1, but got {success[odd][:3]}.")
    if not ((thresholds >= 0) & (thresholds <= 1)).all():
        raise ValueError(f"Expected taus between 0 and 1, but got {list(taus)}.")
    return (success[:, None] >= thresholds).double()


def support_change(before: Tensor, after: Tensor, level: float = 0.5) -> tuple[Tensor, Tensor]:
    """Return the shares of questions that training gained and lost, [K] float64 each, for each budget k.

    A question is within reach of k samples if its pass@k is at least `level`. The question is gained if it is
    within reach after training but not before, and lost in the reverse case. (A softmax policy gives every
    response some probability, so that support depends on the budget of samples.) `before` and `after` are
    [Q, K] float, pass@k of each question before and after training.

    >>> before, after = torch.tensor([[0.1], [0.6], [0.9]]), torch.tensor([[0.7], [0.7], [0.2]])
    >>> support_change(before, after)
    (tensor([0.3333], dtype=torch.float64), tensor([0.3333], dtype=torch.float64))
    """
    had = before >= level
    has = after >= level
    return (has & ~had).double().mean(0), (had & ~has).double().mean(0)
